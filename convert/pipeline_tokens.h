// The calibration tokens of a conversion: what the model writes, the built-in text and files, mixed.
#pragma once

#include <filesystem>

#include "convert/pipeline.h"
#include "core/checkpoint.h"
#include "core/token_set.h"
#include "model/config.h"

namespace kvc {

// Writes `work`/tokens.h5, and beside it self.h5 with the rows that the model wrote; those of an earlier run with
// the same settings stay, and one that was interrupted is gone on with.
TokenSet prepare_tokens(const PipelineOptions& options, const Checkpoint& checkpoint,
                        const ModelConfig& config, const std::filesystem::path& work);

}  // namespace kvc

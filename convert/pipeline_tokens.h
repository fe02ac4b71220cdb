// The calibration tokens of a conversion: self-generated text, the built-in text and files, mixed.
#pragma once

#include <filesystem>

#include "convert/pipeline.h"
#include "core/checkpoint.h"
#include "core/token_set.h"
#include "model/config.h"

namespace kvc {

// Writes `work`/tokens.h5, and beside it self.h5 with the self-generated rows. Rows of an earlier run with the
// same settings are reused; an interrupted run resumes.
TokenSet prepare_tokens(const PipelineOptions& options, const Checkpoint& checkpoint,
                        const ModelConfig& config, const std::filesystem::path& work);

}  // namespace kvc

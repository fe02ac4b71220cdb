// The stages of a conversion up to conversion.h5.
#pragma once

#include <filesystem>

#include "convert/pipeline.h"
#include "core/checkpoint.h"
#include "core/token_set.h"
#include "model/config.h"

namespace kvc {

// The calibration tokens: what the model writes, the built-in text and files, mixed. Writes `work`/tokens.h5, and
// beside it self.h5 with the rows that the model wrote; those of an earlier run with the same settings stay, and one
// that was interrupted is gone on with.
TokenSet prepare_tokens(const PipelineOptions& options, const Checkpoint& checkpoint,
                        const ModelConfig& config, const std::filesystem::path& work);

// Each stage writes its artifact in the directory `work`, unless what it would write is there already from
// an earlier run. `plan`: the conversion's, unless Fisher information is to share its ranks. Returns the conversion's
// directory.
std::filesystem::path run_stages(const PipelineOptions& options, const Checkpoint& checkpoint,
                                 const ModelConfig& config, const KvPlan& plan,
                                 const std::filesystem::path& work);

}  // namespace kvc

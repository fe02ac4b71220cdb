// The stages of a conversion up to conversion.h5.
#pragma once

#include <filesystem>

#include "convert/pipeline.h"
#include "core/checkpoint.h"
#include "model/config.h"

namespace kvc {

// Each stage writes its artifact into `work`, unless an earlier run left the same artifact there. Returns
// the conversion's directory.
std::filesystem::path run_stages(const PipelineOptions& options, const Checkpoint& checkpoint,
                                 const ModelConfig& config, const std::filesystem::path& work);

}  // namespace kvc

// The stages of a conversion up to conversion.h5.
#pragma once

#include <filesystem>

#include "convert/pipeline.h"
#include "core/checkpoint.h"
#include "model/config.h"

namespace kvc {

// Each stage writes its artifact in the directory `work`, unless what it would write is there already from
// an earlier run. Returns the conversion's directory.
std::filesystem::path run_stages(const PipelineOptions& options, const Checkpoint& checkpoint,
                                 const ModelConfig& config, const std::filesystem::path& work);

}  // namespace kvc

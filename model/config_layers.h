// Differences between the layers of a config.json: sliding windows and RoPE.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/config_reader.h"

namespace kvc {

// [num_layers]. `config` has its arch, num_layers and ropes. layer_types decide which layers slide;
// without them the family's rule does.
std::vector<LayerSpec> resolve_layers(const ConfigReader& reader, const ModelConfig& config);

}  // namespace kvc

// RoPE settings of a config.json in either spelling (rope_scaling, rope_parameters).
#pragma once

#include <vector>

#include "model/config.h"
#include "model/config_reader.h"

namespace kvc {

// Resolves as transformers does: rope_scaling if it is a non-empty object, else rope_parameters; the
// two are not merged. One RopeConfig, or two under RopeRule::kPerLayerType: full layers, then sliding
// ones. `config` has its arch, head_dim and max_position_embeddings. Refuses unsupported rope types and
// rotary fractions by name.
std::vector<RopeConfig> resolve_ropes(const ConfigReader& reader, const ModelConfig& config);
// 0.1 m ln(factor) + 1, yarn's scale of queries and keys together; 1 without stretching.
double yarn_magnitude(double factor, double mscale);

}  // namespace kvc

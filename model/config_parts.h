// Parts of a config.json, each read by a source of its own. Every one throws Error naming the key for what is
// missing, impossible or not supported.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/config.h"
#include "model/config_reader.h"

namespace kvc {

// What layers differ in: sliding windows and RoPE.
// [num_layers]. `config` has its arch, num_layers and ropes. layer_types decide which layers slide in families
// that read them; otherwise the family's rule does.
std::vector<LayerSpec> resolve_layers(const ConfigReader& reader, const ModelConfig& config);

// RoPE settings in either spelling (rope_scaling, rope_parameters).
// Resolves as transformers does: rope_scaling if it is a non-empty object, else rope_parameters; the
// two are not merged. One RopeConfig, or two under RopeRule::kPerLayerType: full layers, then sliding
// ones. `config` has its arch, head_dim and max_position_embeddings. Refuses unsupported rope types and
// rotary fractions by name.
std::vector<RopeConfig> resolve_ropes(const ConfigReader& reader, const ModelConfig& config);
// 0.1 m ln(factor) + 1, yarn's scale of queries and keys together; 1 without stretching.
double yarn_magnitude(double factor, double mscale);

// nullopt where no layer has experts.
std::optional<MoeConfig> resolve_moe(const ConfigReader& reader, ExpertStyle style, int num_layers,
                                     std::int64_t intermediate_size);

MlaConfig resolve_mla(const ConfigReader& reader, std::int64_t num_heads);

}  // namespace kvc

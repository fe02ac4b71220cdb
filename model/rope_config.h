// RoPE settings of a config.json in either spelling (rope_scaling, rope_parameters).
#pragma once

#include "model/config.h"
#include "model/config_reader.h"

namespace kvc {

// Resolves as transformers does: rope_scaling if it is a non-empty object, else rope_parameters;
// the two are not merged. Refuses rope types and rotary fractions that are not supported, by name.
RopeConfig resolve_rope(const ConfigReader& config, std::int64_t max_position_embeddings);

}  // namespace kvc

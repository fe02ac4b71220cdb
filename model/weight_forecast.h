// What a model's weights take in memory, before any is read.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/linear.h"

namespace kvc {

// Bytes of Decoder's weights (Decoder::weight_bytes) in `dtype`, matrices as `type`. Norms count in `dtype`, which is less than
// they take where they stay wide. replaced_kv [num_layers]: layers without projections of keys and values; empty: none.
std::int64_t forecast_weight_bytes(const ModelConfig& config, at::ScalarType dtype,
                                   const std::vector<bool>& replaced_kv = {},
                                   WeightType type = WeightType::kFloat);

}  // namespace kvc

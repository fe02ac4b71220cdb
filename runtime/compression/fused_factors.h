// The tensors of a plan's fused layers, loaded once per engine; names in core/conversion_file.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "model/fused_kv.h"

namespace kvc {

struct FusedFactors {
  FusedLayer layer;
  ChannelPairs pairs;
  FusedWeights weights;  // float32, contiguous
};

// [plan.fused]. Throws Error naming a tensor that is missing or has another shape.
std::vector<FusedFactors> load_fused_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                             const ModelConfig& config);
std::int64_t bytes_of(const std::vector<FusedFactors>& layers);

}  // namespace kvc

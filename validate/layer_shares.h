// What a cache keeps of each layer.
#pragma once

#include <cstdint>
#include <vector>

#include "core/json.h"
#include "core/kv_plan.h"

namespace kvc {

// One layer's part of a token that is neither a sink nor in the window: merged where the method merges, a code where it
// codes. Layers that are stored together have equal parts.
struct LayerShare {
  KvSource source = KvSource::kPlain;
  double kept_ratio = 1;  // bytes / those of the model's own keys and values
  double bits = 0;  // per number of the model's own keys and values, gains and scales included
};

// `own`: the dtype of the model's own cache; `cache`: of this one. [num_layers]
std::vector<LayerShare> layer_shares(const KvPlan& plan, KvDtype own, KvDtype cache);
// [{"layer", "source", "kept_ratio", "bits"}]
Json to_json(const std::vector<LayerShare>& layers);

}  // namespace kvc

// Layers that keep the same tokens of a sequence under a token policy.
#pragma once

#include <vector>

#include "core/kv_plan.h"

namespace kvc {

// A plain layer, with the fused layers that read it and all other layers that these read.
struct SharingLayers {
  std::vector<int> layers;   // ascending
  std::vector<int> storage;  // of them the plain ones
  // Do all KV heads keep the same tokens too? Where a fused layer's head reads other heads than its own number.
  bool shares_heads = false;
};

// Of every plain layer of the plan, by the first of them: each layer is in one set. Sets may interleave.
std::vector<SharingLayers> sharing_layers(const KvPlan& plan);

}  // namespace kvc

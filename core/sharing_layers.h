// Layers that keep the same tokens of a sequence under a token policy.
#pragma once

#include <vector>

#include "core/kv_plan.h"

namespace kvc {

// A plain layer, the fused layers that read it, and all layers that these read.
struct SharingLayers {
  std::vector<int> layers;   // ascending
  std::vector<int> storage;  // the plain ones among them
  // Do all KV heads keep the same tokens too? Only if a fused layer's head reads heads of other numbers.
  bool shares_heads = false;
};

// The sets of all plain layers, ordered by first layer. Each layer is in one set; sets may interleave.
std::vector<SharingLayers> sharing_layers(const KvPlan& plan);

}  // namespace kvc

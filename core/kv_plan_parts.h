// A conversion's parts: layers that can be converted without the others.
#pragma once

#include <string>
#include <vector>

#include "core/kv_plan.h"

namespace kvc {

// Adjacent layers.
struct LayerRange {
  int first = 0;
  int count = 0;

  int end() const { return first + count; }
  bool contains(int layer) const { return layer >= first && layer < end(); }
};

std::string to_string(const LayerRange& layers);  // "layer 4", "layers 4-7"

// The layers of each latent group, coded block and pair, and every fused layer. Ascending; none overlap.
std::vector<LayerRange> parts_of(const KvPlan& plan);

// The plan that converts one of these parts alone: all other layers keep plain KV. Merging has the whole plan's target for
// the part's layers.
KvPlan with_part_only(const KvPlan& plan, const LayerRange& part);

}  // namespace kvc

// Attention over the store of a latent group: keys of latents are rebuilt in every step, unless they were
// expanded; everything else is read in place.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "runtime/attention/rebuild_counts.h"
#include "runtime/compression/group_view.h"

namespace kvc {

// One layer of a group.
struct GroupLayer {
  GroupView group;
  int index = 0;     // of the layer in the group
  double alpha = 0;  // of residual slots
  bool selects =
      false;  // each query attends separately, to the latents that it chooses (plan.selective)
  RebuildCounts* rebuilt = nullptr;  // counts of selection; null: not counted

  int layer() const { return group.layer(index); }
};

// Queries of one sequence's last tokens. query [T, num_heads, head_dim] post-RoPE, positions [T].
// [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_group(const GroupLayer& layer, const at::Tensor& query,
                        const at::Tensor& positions);

}  // namespace kvc

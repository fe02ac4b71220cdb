// Attention over the store of a latent group: keys of latents are rebuilt in every step, unless they were
// expanded; everything else is read in place.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/attention/rebuild_counts.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/store/latent_store.h"

namespace kvc {

// One layer of a group.
struct GroupLayer {
  const KvPlan& plan;
  int group = 0, index = 0;  // index: of the layer in the group
  const GroupFactors& factors;
  double alpha = 0;  // of residual slots
  bool selects =
      false;  // each query attends separately, to the latents that it chooses (plan.selective)
  RebuildCounts* rebuilt = nullptr;  // counts of selection; null: not counted

  int layer() const { return plan.groups[static_cast<std::size_t>(group)].first_layer + index; }
};

// Queries of one sequence's last tokens. query [T, num_heads, head_dim] post-RoPE, positions [T].
// [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_group(const Decoder& decoder, const GroupLayer& layer, const LatentStore& store,
                        const at::Tensor& query, const at::Tensor& positions);

}  // namespace kvc

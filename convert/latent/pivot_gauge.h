// The pivot (interpolative) gauge of a group's latents: h' = M h, B' = B M^-1, where M is the rows of B
// that give `rank` chosen pre-RoPE key channels. B' h' = B h for every h, and h' contains the chosen
// channels verbatim, so a step rebuilds only the others.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"

namespace kvc {

struct PivotGauge {
  std::vector<std::int64_t> rows;  // [rank] stacked rows that are kept verbatim, ascending
  at::Tensor transform;            // M [rank, rank] float64
  double condition = 0;            // of M, in the 2-norm
};

// Key rows of B by greedy pivoting over RoPE pairs (channels j and j + head_dim / 2), equally many per
// KV head if the rank allows and M is well conditioned, else over all heads together. No gauge (empty
// rows) if the group has fewer key channels than its rank, or if M would amplify rounding too much:
// condition above 200 (float16 then stores h' to 1e-3). Deterministic. B: [2 * num_layers * kv_dim,
// rank] float64.
PivotGauge pivot_gauge(const LatentGroup& group, std::int64_t kv_dim, std::int64_t head_dim,
                       const at::Tensor& reconstruct_proj);

// B M^-1, with unit vectors as the rows of the pivots, exactly. float64
at::Tensor regauge_reconstruct(const PivotGauge& gauge, const at::Tensor& reconstruct_proj);

}  // namespace kvc

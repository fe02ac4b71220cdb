// Compression of groups with latents along principal directions, calibrated or a request's.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/compression/group_view.h"
#include "runtime/compression/request_basis.h"
#include "runtime/policies/principal_policy.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Decides the counts[g] oldest undecided tokens of every group by principal_step (runtime/policies):
//   calibrated  h = sum_l E_l (y_l - mean_l)
//   request     h = sum_l V_l^T y_l, y as it is stored, and with a new basis V_l found from these tokens
// y: keys before RoPE and after their norm, and values; or the model's own latents before their
// norm.
void compress_principal(const Decoder& decoder, const LatentFactors& factors, KvDtype dtype,
                        const std::vector<std::int64_t>& counts, KvCache& cache);

// The same for one group's `count` oldest undecided tokens, by the decision for all groups.
void compress_principal_group(const Decoder& decoder, const LatentFactors& factors, int group,
                              std::int64_t count, PrincipalStep step, KvCache& cache);

// Latents of a group's tokens at `positions`, on any device: `encoders` and `mean` (undefined: zero) are there. [n, rank] of
// `type`
at::Tensor principal_latents(const LatentGroup& group, const at::Tensor& positions,
                             const GroupRows& rows, const std::vector<LayerEncoder>& encoders,
                             const at::Tensor& mean, at::ScalarType type);
// Latents under calibrated directions of pending rows from `first` on. positions [n]; [n, rank] float32
at::Tensor encode_principal(const GroupView& group, std::int64_t first,
                            const at::Tensor& positions);

}  // namespace kvc

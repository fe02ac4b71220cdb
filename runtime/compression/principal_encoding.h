// Compression of groups whose latents are coefficients of principal directions, calibrated or a request's.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Decides the `count` oldest undecided tokens of all groups as principal_step (runtime/policies) says:
//   calibrated  h = sum_l E_l (y_l - mean_l)
//   request     h = sum_l V_l^T y_l, y as it is stored, and with a new basis V_l found from these tokens
// y: keys before RoPE and after their norm, and values; or a model's own latents before their norm.
void compress_principal(const Decoder& decoder, const LatentFactors& factors, KvDtype dtype,
                        std::int64_t count, KvCache& cache);

}  // namespace kvc

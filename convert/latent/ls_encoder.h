// The least-squares encoder of merged tokens: h = P y minimises sum_c f_c (y - B h)_c^2.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "convert/latent/group_svd.h"
#include "core/kv_plan.h"

namespace kvc {

// P [rank, rows] float64 with P B = I. `weights` f [rows] float64, positive; undefined: all equal,
// and then P = diag(s)^-1 B^T.
at::Tensor ls_encoder(const GroupFactorization& factors, const at::Tensor& weights);

// A group's channel weights in the order of its stacked rows: Fisher information of each output
// channel, at least 1e-3 of its mean over the layer's keys (or values), so no channel is dropped.
// `fisher_channel` [num_layers of the model, 2, kv_dim]. [rows] float64
at::Tensor ls_channel_weights(const LatentGroup& group, const std::vector<double>& fisher_channel,
                              std::int64_t kv_dim);

}  // namespace kvc

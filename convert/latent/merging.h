// How latents of merged tokens are made: weights of layers, or least squares.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "convert/latent/group_svd.h"
#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "core/token_set.h"

namespace kvc {

// P [rank, rows] float64 with P B = I. `weights` f [rows] float64, positive; undefined: all equal,
// and then P = diag(s)^-1 B^T.
at::Tensor ls_encoder(const GroupFactorization& factors, const at::Tensor& weights);

// A group's channel weights in the order of its stacked rows: Fisher information of each output
// channel, at least 1e-3 of its mean over the layer's keys (or values), so no channel is dropped.
// `fisher_channel` [num_layers of the model, 2, kv_dim]. [rows] float64
at::Tensor ls_channel_weights(const LatentGroup& group, const std::vector<double>& fisher_channel,
                              std::int64_t kv_dim);

// Weights of the convex merge rules, h = sum_l w_l A x_l.
// The scores of a group's layers as weights that sum to 1; equal when no score is positive.
// `layer_scores` [num_layers of the model].
std::vector<double> merge_weights(const LatentGroup& group,
                                  const std::vector<double>& layer_scores);

// Per layer max(0, perplexity with that layer's post-RoPE keys replaced by N(0, 1) - perplexity),
// over at most 10 sequences. The whole model is in memory. [num_layers]
std::vector<double> sensitivity_scores(const Checkpoint& checkpoint, const TokenSet& tokens,
                                       std::uint64_t seed);

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

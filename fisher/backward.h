// Gradients of one sequence's mean next-token NLL, one layer at a time from the last to the first.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/decoder.h"

namespace kvc {

struct LossGradient {
  double loss = 0;    // mean NLL over the sequence's num_tokens - 1 scored tokens
  at::Tensor hidden;  // [num_tokens, hidden_size], d loss / d hidden_states
};
// Logits at t are scored against token t + 1. hidden_states [num_tokens, hidden_size]: the last layer's
// output for one sequence of at least two tokens.
LossGradient loss_gradient(const ModelConfig& config, const ModelWeights& weights,
                           const at::Tensor& hidden_states, const at::Tensor& ids);

struct LayerGradient {
  at::Tensor k_proj, v_proj;  // [kv_dim, hidden_size], summed over the sequence's tokens
  at::Tensor hidden;  // [num_tokens, hidden_size], of the layer's input; undefined if not asked for
};
// Runs the layer again and back. hidden_states: its input; output_gradient: d loss / d its output.
LayerGradient layer_gradient(const ModelConfig& config, const RopeTables& rope,
                             const LayerWeights& weights, int layer,
                             const at::Tensor& hidden_states, const TokenBatch& batch,
                             const at::Tensor& output_gradient, bool with_hidden);

}  // namespace kvc

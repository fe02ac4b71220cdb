// Gradients of one sequence's mean next-token NLL, one layer at a time from the last to the first.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/checkpoint.h"
#include "model/decoder.h"

namespace kvc {

struct LossGradient {
  double loss = 0;
  at::Tensor hidden;  // [num_tokens, hidden_size], d loss / d hidden_states
};
// The mean NLL over the sequence's num_tokens - 1 scored tokens. Logits at t are scored against token t + 1. hidden_states [num_tokens, hidden_size]: the last layer's
// output for one sequence of at least two tokens.
LossGradient loss_gradient(const ModelConfig& config, const ModelWeights& weights,
                           const at::Tensor& hidden_states, const at::Tensor& ids);

// Error that names the checkpoint where a sum of losses is not finite, although every layer's output is.
void check_finite_loss(const Checkpoint& checkpoint, double loss);

// The summed NLL of labels drawn from the model's own output, one for each row of `hidden_states`
// [num_tokens, hidden_size]; `seed` decides the draw.
LossGradient sampled_loss_gradient(const ModelConfig& config, const ModelWeights& weights,
                                   const at::Tensor& hidden_states, std::uint64_t seed);

struct LayerGradient {
  // [kv_dim, hidden_size] float32, summed over the sequence's tokens in float32 whatever the activations'
  // type
  at::Tensor k_proj, v_proj;
  at::Tensor hidden;  // [num_tokens, hidden_size], of the layer's input; undefined if not asked for
};
// Runs the layer again and back. hidden_states: its input; output_gradient: d loss / d its output.
LayerGradient layer_gradient(const ModelConfig& config, const RopeTables& rope,
                             const LayerWeights& weights, int layer,
                             const at::Tensor& hidden_states, const TokenBatch& batch,
                             const at::Tensor& output_gradient, bool with_hidden);

// Gradients with respect to what a cache holds: the first tokens' keys and values as the other tokens of
// the sequence read them, all else of the first tokens being fixed.

// For one layer, for one sequence.
struct CachedRows {
  at::Tensor key,
      value;  // [num_cached, num_kv_heads, head_dim]; keys before RoPE, after their norm
};

struct CacheGradient {
  at::Tensor key, value;  // as CachedRows
  at::Tensor hidden;  // [num_tokens, hidden_size], of the layer's input; undefined if not asked for
};
// Runs the layer again for the tokens behind the cached ones, and back. `batch`: those tokens, with their
// positions; hidden_states: their input; output_gradient: d loss / d their output.
CacheGradient cache_gradient(const ModelConfig& config, const RopeTables& rope,
                             const LayerWeights& weights, int layer, const CachedRows& cached,
                             const at::Tensor& hidden_states, const TokenBatch& batch,
                             const at::Tensor& output_gradient, bool with_hidden);

}  // namespace kvc

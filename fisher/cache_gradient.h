// Gradients with respect to what a cache holds: the first tokens' keys and values as the other tokens of
// the sequence read them, all else of the first tokens being fixed.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/decoder.h"

namespace kvc {

// Of one layer, for one sequence.
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

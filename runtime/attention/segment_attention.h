// Attention of one sequence's queries over several segments of a cache: one softmax over all, masks
// by position.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace kvc {

inline constexpr std::int64_t kScoresPerChunk = std::int64_t{1} << 24;  // 64 MB of float32 scores

// [n, heads, channels] as float32 [heads, n, channels].
inline at::Tensor heads_first(const at::Tensor& x) { return x.to(at::kFloat).transpose(0, 1); }

// Keys and values of some tokens. Values are given, or come from latents: value_proj latent +
// value_bias.
struct Segment {
  at::Tensor key;           // [n, num_kv_heads, head_dim] post-RoPE
  at::Tensor positions;     // [n] int64
  at::Tensor value;         // [n, num_kv_heads, head_dim], or undefined
  at::Tensor latent;        // [n, value_rank] where `value` is undefined
  at::Tensor value_proj;    // [kv_dim, value_rank]
  at::Tensor value_bias;    // [kv_dim], or undefined
  at::Tensor score_bias{};  // [n, num_kv_heads] float32 added to scores, or undefined
};

// From given keys and values.
inline Segment segment_of(const at::Tensor& key, const at::Tensor& value,
                          const at::Tensor& positions) {
  return {.key = key,
          .positions = positions,
          .value = value,
          .latent = {},
          .value_proj = {},
          .value_bias = {}};
}

// True if summing latents (rank space) is cheaper than rebuilding values:
// num_queries * num_heads * (rank - head_dim) < rank * kv_dim.
bool prefers_rank_space(std::int64_t num_queries, std::int64_t num_heads, std::int64_t head_dim,
                        std::int64_t kv_dim, std::int64_t rank);

// query [T, num_heads, head_dim] post-RoPE, query_positions [T] int64. Scores and sums in float32.
// [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_segments(const at::Tensor& query, const at::Tensor& query_positions,
                           const std::vector<Segment>& segments, const AttentionRule& rule);

}  // namespace kvc

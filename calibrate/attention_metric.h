// How much attention's output moves when a cached key or value does, from the forward pass alone: the
// metric `attn` of coded caches. Per KV head, over its query heads and queries i after token j,
//   key    sum p_ij^2 s^2 |W_o (v_j - o_i)|^2 (R_j^T q_i)(R_j^T q_i)^T
//   value  sum p_ij^2 W_o^T W_o
// with p attention's probability, s the scale of its scores, o_i the head's output, q_i the rotated query
// and R_j the rotation of position j (without its attention factor). Beside it, what says how far attention looks:
//   query     the key's sum with q_i unrotated in place of R_j^T q_i
//   distance  per query head, the sum of the key's factor before the outer product over all i - j alike
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/hdf5.h"
#include "model/layer_stream.h"

namespace kvc {

// Which sums are taken; the value's always.
struct AttentionSums {
  bool key = true;     // most of the work
  bool reach = false;  // query and distance
};

class AttentionMetric {
 public:
  AttentionMetric(const ModelConfig& config, const RopeTables& rope, int layer,
                  const AttentionSums& sums, at::Device device = at::kCPU);
  // One sequence alone. Its first `sink_tokens` tokens are left out as keys and values; every eighth
  // query stands for eight.
  void add(const LayerActivations& activations, std::int64_t sink_tokens);
  // Those that were taken, as /attention/<layer>/key_metric, value_metric, query_metric and distance_weight; Error when
  // one is not finite.
  void write(Hdf5Writer& file) const;

 private:
  // Queries and keys of one head, rotated; `plain` are the queries unrotated. [num_tokens, head_dim]
  void add_head(std::int64_t head, const at::Tensor& plain, const at::Tensor& queries,
                const at::Tensor& keys, const at::Tensor& values, const at::Tensor& positions,
                std::int64_t sink_tokens);
  // Sum over tokens j and queries i of moved[i, j] (R_j^T q_i)(R_j^T q_i)^T, float64 [head_dim, head_dim]. Tokens are taken
  // in slices, since each has a matrix of its own on the way.
  at::Tensor key_sum(const at::Tensor& moved, const at::Tensor& query,
                     const at::Tensor& positions) const;

  const ModelConfig& config_;
  const RopeTables& rope_;
  int layer_;
  AttentionSums sums_;
  at::Tensor output_gram_;                // [num_heads, head_dim, head_dim] float32, W_o^T W_o
  at::Tensor key_metric_, value_metric_;  // [num_kv_heads, head_dim, head_dim] float64
  at::Tensor query_metric_;               // the same
  at::Tensor distance_weight_;            // [num_heads, kNumDistances] float64
};

}  // namespace kvc

// Causal attention of some of a text's tokens over all of it, and how much attention every token receives.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace kvc {

// Attention that tokens receive from consecutive rows of queries.
struct ReceivedAttention {
  std::int64_t first = 0, count = 0;  // rows
  at::Tensor sums;  // [tokens up to the last row's] float32, over these rows and all heads
};

// Keys and values of one layer of one sequence, position after position from 0, on any device; positions are the CPU's.
class RowAttention {
 public:
  // key [num_tokens, num_kv_heads, head_dim] post-RoPE, value likewise.
  RowAttention(const at::Tensor& key, const at::Tensor& value, const AttentionRule& rule);

  std::int64_t num_tokens() const { return key_.size(2); }
  // query [num_rows, num_heads, head_dim] post-RoPE, at ascending `positions` [num_rows].
  // [num_rows, num_heads * head_dim] in the query's dtype. `received`: appended to where it is not null.
  at::Tensor attend(const at::Tensor& query, const at::Tensor& positions,
                    std::vector<ReceivedAttention>* received = nullptr) const;
  // Without the attended values.
  std::vector<ReceivedAttention> received(const at::Tensor& query,
                                          const at::Tensor& positions) const;

 private:
  struct Block;
  Block block(const at::Tensor& query, const at::Tensor& positions, std::int64_t first) const;
  at::Tensor probabilities(const Block& block) const;
  void mask(const Block& block, at::Tensor& scores) const;

  at::Tensor key_;    // [num_kv_heads, head_dim, num_tokens] float32, times the scale
  at::Tensor value_;  // [num_kv_heads, num_tokens, head_dim] float32
  AttentionRule rule_;
};

// For all rows, [num_tokens] float64, on the CPU.
at::Tensor sum_received(const std::vector<ReceivedAttention>& received, std::int64_t num_tokens);

}  // namespace kvc

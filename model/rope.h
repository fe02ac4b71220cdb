// Rotary position embedding from one table per model. Pairs are (i, i + head_dim/2), HuggingFace's
// layout. Formulas: default, linear and llama3 as transformers computes them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/config.h"

namespace kvc {

// Inverse frequencies, float32. [head_dim / 2]
at::Tensor rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim);

// Not for concurrent use: the table grows, and remembers what was asked last, on demand.
class RopeTable {
 public:
  // cos and sin are computed in float32 and cast to `dtype` (as transformers does).
  RopeTable(const ModelConfig& config, at::ScalarType dtype);

  // Rotates. x: [num_tokens, num_heads, head_dim]; positions: [num_tokens] int64. Same shape and
  // dtype.
  at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions) const;
  // The inverse rotation, in float32 whatever x's dtype.
  at::Tensor unrotate(const at::Tensor& x, const at::Tensor& positions) const;

 private:
  struct Rows {
    at::Tensor positions;
    std::uint32_t version = 0;  // of positions, when these rows were looked up
    at::Tensor cos, sin;        // [num_tokens, 1, head_dim / 2], dtype_
  };
  void grow(std::int64_t num_positions) const;
  // Every layer asks for the same positions: the last two answers are kept.
  const Rows& rows(const at::Tensor& positions) const;
  at::Tensor inverse_frequencies_;
  at::ScalarType dtype_;
  mutable at::Tensor cos_, sin_;  // [num_positions, head_dim / 2], float32
  mutable Rows recent_[2];        // latest first
};

}  // namespace kvc

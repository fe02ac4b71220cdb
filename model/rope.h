// Rotary position embedding from one table per model. Pairs are (i, i + head_dim/2), HuggingFace's
// layout. Formulas: default, linear and llama3 as transformers computes them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/config.h"

namespace kvc {

// Inverse frequencies, float32. [head_dim / 2]
at::Tensor rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim);

class RopeTable {
 public:
  // cos and sin are computed in float32 and cast to `dtype` (as transformers does).
  RopeTable(const ModelConfig& config, at::ScalarType dtype);

  // Rotates. x: [num_tokens, num_heads, head_dim]; positions: [num_tokens] int64. Same shape and dtype.
  at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions) const;
  // The inverse rotation, in float32 whatever x's dtype.
  at::Tensor unrotate(const at::Tensor& x, const at::Tensor& positions) const;

 private:
  void grow(std::int64_t num_positions) const;
  at::Tensor inverse_frequencies_;
  at::ScalarType dtype_;
  mutable at::Tensor cos_, sin_;    // [num_positions, head_dim / 2], dtype_
  mutable at::Tensor cos32_, sin32_;  // the same in float32
};

}  // namespace kvc

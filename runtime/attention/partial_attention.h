// Attention over some of the tokens that a query sees, to join with attention over the others.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

struct PartialAttention {
  at::Tensor output;   // [num_heads, width] float32
  at::Tensor log_sum;  // [num_heads] float32, log of the sum of exp(score)
};

// Over the tokens of all parts (at least one). [num_heads * width] float32
at::Tensor join(const std::vector<PartialAttention>& parts);

// Memory for kernels' partials of all heads, outputs of `width` numbers.
class Partials {
 public:
  Partials(std::size_t count, std::int64_t num_heads, std::int64_t width);
  Partials(const Partials&) = delete;

  const AttentionPartial& operator[](std::size_t index) const { return partials_[index]; }
  const std::vector<AttentionPartial>& all() const { return partials_; }
  // Partials of no tokens; they may be combined with others, but not only with such.
  void clear();
  PartialAttention combine() const;

 private:
  std::int64_t num_heads_, width_;
  std::vector<float> memory_;
  std::vector<AttentionPartial> partials_;
};

}  // namespace kvc

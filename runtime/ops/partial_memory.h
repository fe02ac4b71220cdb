// Memory of partial softmaxes. Does not use torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

// Partial softmaxes of `num_heads` heads each, whose sums have `width` numbers.
class PartialMemory {
 public:
  PartialMemory(std::int64_t count, std::int64_t num_heads, std::int64_t width)
      : num_heads_(num_heads),
        width_(width),
        numbers_(static_cast<std::size_t>(count * num_heads * (width + 2))) {}

  AttentionPartial operator[](std::int64_t index) {
    float* from = numbers_.data() + index * num_heads_ * (width_ + 2);
    return {.max = from, .sum = from + num_heads_, .output = from + 2 * num_heads_, .scores = {}};
  }

 private:
  std::int64_t num_heads_, width_;
  std::vector<float> numbers_;
};

}  // namespace kvc

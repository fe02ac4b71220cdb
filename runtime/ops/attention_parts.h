// How attention over an engine's pages is divided: parts of a sequence, the threads that take them, and memory of their partial
// softmaxes. Does not use torch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

// Below as many products, another thread costs more than it saves.
inline constexpr std::int64_t kProductsPerThread = 400'000;

// Items that a thread takes at least, of `count` that have `products` together.
inline std::int64_t least_together(std::int64_t count, std::int64_t products) {
  return kProductsPerThread * count / std::max<std::int64_t>(1, products) + 1;
}

// Calls take(begin, end) for the parts of tokens first .. last - 1 that multiples of `together` divide. So parts and their sums
// do not depend on the number of threads.
template <typename Take>
void for_each_part(std::int64_t first, std::int64_t last, std::int64_t together, const Take& take) {
  for (std::int64_t end; first < last; first = end) {
    end = std::min(last, (first / together + 1) * together);
    take(first, end);
  }
}

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

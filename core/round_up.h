// Multiples of `step` next to a count.
#pragma once

#include <cstdint>

namespace kvc {

// The smallest not below `count`. count >= 0, step >= 1; their sum fits.
constexpr std::int64_t round_up(std::int64_t count, std::int64_t step) {
  return (count + step - 1) / step * step;
}

// The largest not above `count`.
constexpr std::int64_t round_down(std::int64_t count, std::int64_t step) {
  return count / step * step;
}

}  // namespace kvc

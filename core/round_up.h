// The multiples of `step` next to a count.
#pragma once

#include <cstdint>

namespace kvc {

// The least that is not below it. count >= 0, step >= 1; their sum fits.
constexpr std::int64_t round_up(std::int64_t count, std::int64_t step) {
  return (count + step - 1) / step * step;
}

// The greatest that is not above it.
constexpr std::int64_t round_down(std::int64_t count, std::int64_t step) {
  return count / step * step;
}

}  // namespace kvc

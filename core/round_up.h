// The least multiple of `step` that is not below a count.
#pragma once

#include <cstdint>

namespace kvc {

// count >= 0, step >= 1; their sum fits.
constexpr std::int64_t round_up(std::int64_t count, std::int64_t step) {
  return (count + step - 1) / step * step;
}

}  // namespace kvc

// What tests read off the layout of a tile of codes.
#pragma once

#include <vector>

#include "runtime/kernels/code_tiles.h"

namespace kvc::testing {

// Bits of every coefficient, in order.
inline std::vector<int> widths_of(const TileLayout& layout) {
  std::vector<int> widths;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    widths.insert(widths.end(), static_cast<std::size_t>(layout.coefficients[bits]), bits);
  }
  return widths;
}

}  // namespace kvc::testing

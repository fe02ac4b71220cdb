// A tile of codes (runtime/kernels/code_tiles.h) as kernels read it.
#pragma once

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/cuda/device_tiles.h"

namespace kvc {

static_assert(kMostCodeBits == kWidestCode);

// The layout alone: where the tiles lie is for the caller to set.
inline DeviceTiles device_layout(const TileLayout& layout) {
  DeviceTiles tiles;
  for (int bits = 0; bits <= kMostCodeBits; ++bits) {
    tiles.coefficients[bits] = static_cast<int>(layout.coefficients[bits]);
  }
  tiles.num_coefficients = static_cast<int>(layout.num_coefficients());
  tiles.code_bytes = static_cast<int>(layout.code_bytes());
  tiles.gain = layout.gain;
  return tiles;
}

}  // namespace kvc

// Coefficients to tiles of codes (runtime/kernels/code_tiles.h) and back on the GPU.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_tiles.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

constexpr int kDeviceTileTokens = 32;  // kTileTokens

// `count` tiles of one sequence, from `first_tile` on. Coefficients become codes as encode_tile() makes them: the same
// bytes but for gains whose errors differ by rounding alone. Codes become levels times gains, in units of the steps.
struct CodeTilesParams {
  DeviceTiles tiles;
  int first_tile = 0, count = 0;
  float* coefficients =
      nullptr;                   // [count, 32, num_coefficients]: read by encode, written by decode
  const float* steps = nullptr;  // [num_coefficients], for encode
  bool decodes = false;          // codes to coefficients
};

}  // namespace kvc

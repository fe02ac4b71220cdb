// Tiles of codes (runtime/kernels/code_tiles.h) to numbers on the GPU.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_tiles.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

constexpr int kDeviceTileTokens = 32;  // kTileTokens

// `count` tiles of one sequence, from `first_tile` on, become levels times gains, in units of the steps.
struct DecodeTiles {
  DeviceTiles tiles;
  int first_tile = 0, count = 0;
  float* levels = nullptr;  // [count, 32, num_coefficients]
};

}  // namespace kvc

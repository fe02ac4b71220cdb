// Coefficients to tiles of codes (runtime/kernels/code_tiles.h) and back on the GPU: the same bytes.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_tiles.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

constexpr int kDeviceTileTokens = 32;  // kTileTokens

// `count` tiles of each sequence, from first_tiles[sequence] on. Coefficients become codes as encode_tile() makes
// them, and codes coefficients as decode_tile() does: to the bit, but for gains whose errors differ by rounding
// alone.
struct CodeTilesParams {
  DeviceTiles tiles;
  const std::int32_t* first_tiles = nullptr;  // [num_sequences], in GPU memory; null: 0
  int num_sequences = 1;
  int count = 0;
  // [num_sequences, count, 32, num_coefficients]: read by encode, written by decode
  float* coefficients = nullptr;
  const float* steps = nullptr;  // [num_coefficients]
  bool decodes = false;          // codes to coefficients
};

}  // namespace kvc

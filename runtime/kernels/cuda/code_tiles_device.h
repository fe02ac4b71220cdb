// Tiles of codes (runtime/kernels/code_tiles.h) on the GPU: the same bytes.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_qualifiers.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

constexpr int kDeviceTileTokens = 32;  // kTileTokens

// TileLayout for kernels.
struct DeviceTileLayout {
  std::int32_t coefficients[9] = {};  // [bits] how many have so many
  std::int32_t count = 0;             // of all widths
  std::int32_t code_bytes = 0;        // of a tile
  std::int32_t bytes = 0;             // likewise, with gains
  bool gain = false;
};
// From TileLayout's members.
inline DeviceTileLayout device_tile_layout(const std::int64_t* coefficients, bool gain) {
  DeviceTileLayout layout;
  for (int bits = 1; bits <= 8; ++bits) {
    layout.coefficients[bits] = static_cast<std::int32_t>(coefficients[bits]);
    layout.count += layout.coefficients[bits];
    layout.code_bytes += 4 * bits * layout.coefficients[bits];
  }
  layout.gain = gain;
  layout.bytes = layout.code_bytes + (gain ? kDeviceTileTokens : 0);
  return layout;
}

// Coefficients of tiles of 32 tokens become codes, as encode_tile() makes them, and codes coefficients, as
// decode_tile() does: to the bit, but for gains whose errors differ by rounding alone.
struct CodeTilesParams {
  DeviceTileLayout layout;
  int num_tiles = 0;
  float* coefficients = nullptr;  // [num_tiles, 32, count]: read by encode, written by decode
  const float* steps = nullptr;   // [count]
  void* const* tiles = nullptr;   // [num_tiles], in GPU memory; each layout.bytes, 4-byte aligned
};
LaunchError encode_tiles_cuda(const CodeTilesParams& params, void* stream);
LaunchError decode_tiles_cuda(const CodeTilesParams& params, void* stream);

}  // namespace kvc

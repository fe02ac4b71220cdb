// Tiles of codes in GPU memory, laid out as runtime/kernels/code_tiles.h says.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_qualifiers.h"

namespace kvc {

constexpr int kMostCodeBits = 8;  // kWidestCode of code_tiles.h

// The tiles of one coded block, of each sequence: tile i of sequence s is tile i % block_tiles of
// blocks[s * max_blocks + i / block_tiles].
struct DeviceTiles {
  const void* const* blocks = nullptr;  // 4-byte aligned
  std::int64_t max_blocks = 0;
  int block_tiles = 0;
  int coefficients[kMostCodeBits + 1] = {};  // [bits] how many have so many
  int num_coefficients = 0;
  int code_bytes = 0;
  bool gain = false;
};

KVC_HOST_DEVICE int tile_bytes(const DeviceTiles& tiles) {
  return tiles.code_bytes + (tiles.gain ? 32 : 0);
}

// A walk over tiles whose next ones are a few behind, without a division each.
struct TileWalk {
  int block = 0, in_block = 0;
};
KVC_HOST_DEVICE TileWalk walk_from(const DeviceTiles& tiles, int tile) {
  return tiles.block_tiles > 0 ? TileWalk{tile / tiles.block_tiles, tile % tiles.block_tiles}
                               : TileWalk{};
}
// To a later tile; there are some.
KVC_HOST_DEVICE void skip_tiles(TileWalk& walk, const DeviceTiles& tiles, int count) {
  walk.in_block += count;
  while (walk.in_block >= tiles.block_tiles) {
    walk.in_block -= tiles.block_tiles;
    ++walk.block;
  }
}
KVC_HOST_DEVICE const std::uint8_t* tile_at(const DeviceTiles& tiles, std::int64_t sequence,
                                            const TileWalk& walk) {
  const auto* block =
      static_cast<const std::uint8_t*>(tiles.blocks[sequence * tiles.max_blocks + walk.block]);
  return block + static_cast<std::int64_t>(walk.in_block) * tile_bytes(tiles);
}

KVC_HOST_DEVICE const std::uint8_t* tile_at(const DeviceTiles& tiles, std::int64_t sequence,
                                            int tile) {
  return tile_at(tiles, sequence, TileWalk{tile / tiles.block_tiles, tile % tiles.block_tiles});
}

// A coefficient's width and its first byte in the tile, or the end of the codes.
struct CoefficientPlace {
  int bits, byte;
};
KVC_HOST_DEVICE CoefficientPlace coefficient_place(const DeviceTiles& tiles, int coefficient) {
  int byte = 0;
  for (int bits = kMostCodeBits; bits >= 1; --bits) {
    const int count = tiles.coefficients[bits];
    if (coefficient < count) {
      return {bits, byte + 4 * bits * coefficient};
    }
    coefficient -= count;
    byte += 4 * bits * count;
  }
  return {0, byte};
}

// Token `token`'s code of `bits` bits; planes: the coefficient's first byte.
KVC_HOST_DEVICE int unpack_code(const std::uint8_t* planes, int bits, int token) {
  int code = 0, left = bits;
  KVC_UNROLL
  for (int plane = 8; plane >= 1; plane /= 2) {
    if ((bits & plane) != 0) {
      left -= plane;
      const int bit = token * plane;
      code |= (planes[bit / 8] >> (bit % 8) & ((1 << plane) - 1)) << left;
      planes += 4 * plane;
    }
  }
  return code;
}

// Value / (step * gain) of a code: exact in float16.
KVC_HOST_DEVICE float code_level(int code, int bits) {
  return static_cast<float>(code) + 0.5f - static_cast<float>(1 << (bits - 1));
}

constexpr int kGainIndices = 8;  // kNumGains of code_tiles.h
// 1/2, sqrt(1/2), 1, sqrt 2, 2, 4, 8, 16: kGains of code_tiles.h.
KVC_HOST_DEVICE float gain_of(int index) {
  if (index < 4) {
    return index == 0 ? 0.5f : index == 1 ? 0.70710678f : index == 2 ? 1.0f : 1.41421356f;
  }
  return static_cast<float>(1 << (index < 7 ? index - 3 : 4));
}
KVC_HOST_DEVICE float tile_gain(const DeviceTiles& tiles, const std::uint8_t* tile, int token) {
  return tiles.gain ? gain_of(tile[tiles.code_bytes + token]) : 1.0f;
}

}  // namespace kvc

// Memory layout of a coded block's codes (core/kv_sources.h), shared by stores and kernels on any device.
// Does not use torch.
//
// A tile has kTileTokens tokens. Tokens are the fast axis and coefficients are separate, so a vector,
// or a warp with one token a lane, unpacks all widths with shifts:
//
//   coefficients in order, of falling width b      4 b bytes each: planes of 8, 4, 2 and 1 bits whose sum
//                                                  is b, the widest first; it has the highest bits
//   plane of p bits                                4 p bytes, one little-endian number: token t's bits are
//                                                  those from p t on
//   gain, if the block has one                     a byte per token
//
// A code c of b bits has the value (c - 2^(b-1) + 1/2) * step * kGains[gain of the token].
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/kernels/kv_rows.h"

namespace kvc {

inline constexpr std::int64_t kTileTokens = kQuantisedRows;
// From which token on a token reads all exactly, of as many tiles with its own. Tiles follow the first `sinks` tokens.
inline std::int64_t exact_start(std::int64_t token, std::int64_t exact_tiles,
                                std::int64_t sinks = 0) {
  const std::int64_t tile = std::max<std::int64_t>(0, token - sinks) / kTileTokens;
  const std::int64_t start = std::max<std::int64_t>(0, tile - (exact_tiles - 1)) * kTileTokens;
  return start == 0 ? 0 : sinks + start;
}
inline constexpr int kWidestCode = 8;

inline constexpr int kNumGains = 8;
inline constexpr float kGains[kNumGains] = {0.5f, 0.70710678f, 1, 1.41421356f, 2, 4, 8, 16};
inline constexpr std::uint8_t kUnitGain = 2;  // the gain byte of a token without a choice

struct TileLayout {
  std::int64_t coefficients[kWidestCode + 1] = {};  // [bits] how many have so many
  bool gain = false;

  std::int64_t num_coefficients() const {
    std::int64_t count = 0;
    for (const std::int64_t of_width : coefficients) {
      count += of_width;
    }
    return count;
  }
  std::int64_t code_bytes() const {
    std::int64_t bits = 0;
    for (int width = 1; width <= kWidestCode; ++width) {
      bits += width * coefficients[width];
    }
    return bits * (kTileTokens / 8);
  }
  std::int64_t bytes() const { return code_bytes() + (gain ? kTileTokens : 0); }
};

// Tiles of one block in blocks of `block_tiles` tiles each: tile i is tile i % block_tiles of block
// i / block_tiles. No blocks if a tile has no bytes.
struct CodeTiles {
  const void* const* blocks = nullptr;
  std::int64_t block_tiles = 0;
  std::int64_t num_tiles = 0;
  TileLayout layout{};

  const std::uint8_t* tile(std::int64_t index) const {
    return blocks == nullptr ? nullptr
                             : static_cast<const std::uint8_t*>(blocks[index / block_tiles]) +
                                   index % block_tiles * layout.bytes();
  }
};

// A coefficient of `bits` bits: value / step of code 0.
inline float first_level(int bits) { return 0.5f - static_cast<float>(1 << (bits - 1)); }

// codes [num_coefficients, kTileTokens], gains [kTileTokens] (null without), to and from bytes() bytes.
void pack_tile_reference(const TileLayout& layout, const std::uint8_t* codes,
                         const std::uint8_t* gains, std::uint8_t* tile);
void unpack_tile_reference(const TileLayout& layout, const std::uint8_t* tile, std::uint8_t* codes);
void pack_tile(const TileLayout& layout, const std::uint8_t* codes, const std::uint8_t* gains,
               std::uint8_t* tile);
void unpack_tile(const TileLayout& layout, const std::uint8_t* tile, std::uint8_t* codes);

// The gains of the tile's tokens. [kTileTokens]
void tile_gains(const TileLayout& layout, const std::uint8_t* tile, float* gains);

// Coefficients of a tile's tokens, [kTileTokens, num_coefficients], under steps [num_coefficients], become
// codes: clamp(floor(z / (step * gain))) to the codes of its width, with the gain of least squared error
// (ties: the first).
void encode_tile(const TileLayout& layout, const float* z, const float* steps, std::uint8_t* tile);
// One token's coefficients [num_coefficients] become the codes of token `lane`, the same as in encode_tile; the
// tile's other tokens stay.
void encode_token(const TileLayout& layout, const float* z, const float* steps, std::int64_t lane,
                  std::uint8_t* tile);
// Coefficients of `count` tokens become those of the tile's tokens from `lane` on. The first token of a tile clears
// what was there: tokens that are not written yet have codes and gains 0.
void encode_tokens(const TileLayout& layout, const float* z, const float* steps, std::int64_t lane,
                   std::int64_t count, std::uint8_t* tile);
// Values of the codes. [kTileTokens, num_coefficients]
void decode_tile(const TileLayout& layout, const std::uint8_t* tile, const float* steps, float* z);

}  // namespace kvc

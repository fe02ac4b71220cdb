#include <algorithm>

#include "runtime/kernels/code_tiles.h"

namespace kvc {
namespace {

// Calls visit(coefficient, bits, first byte) for every coefficient in order.
template <class Visit>
void for_each_coefficient(const TileLayout& layout, const Visit& visit) {
  std::int64_t coefficient = 0, byte = 0;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    for (std::int64_t i = 0; i < layout.coefficients[bits]; ++i) {
      visit(coefficient++, bits, byte);
      byte += bits * kTileTokens / 8;
    }
  }
}

// Calls visit(plane bits, shift of the plane in the code, first byte).
template <class Visit>
void for_each_plane(int bits, std::int64_t byte, const Visit& visit) {
  int left = bits;
  for (const int plane : {8, 4, 2, 1}) {
    if ((bits & plane) != 0) {
      left -= plane;
      visit(plane, left, byte);
      byte += plane * kTileTokens / 8;
    }
  }
}

}  // namespace

void pack_tile_reference(const TileLayout& layout, const std::uint8_t* codes,
                         const std::uint8_t* gains, std::uint8_t* tile) {
  std::fill_n(tile, layout.bytes(), std::uint8_t{0});
  for_each_coefficient(layout, [&](std::int64_t coefficient, int bits, std::int64_t first) {
    for_each_plane(bits, first, [&](int plane, int shift, std::int64_t byte) {
      for (std::int64_t token = 0; token < kTileTokens; ++token) {
        const int part = (codes[coefficient * kTileTokens + token] >> shift) & ((1 << plane) - 1);
        const std::int64_t bit = token * plane;
        tile[byte + bit / 8] = static_cast<std::uint8_t>(tile[byte + bit / 8] | part << bit % 8);
      }
    });
  });
  if (layout.gain) {
    std::copy_n(gains, kTileTokens, tile + layout.code_bytes());
  }
}

void unpack_tile_reference(const TileLayout& layout, const std::uint8_t* tile,
                           std::uint8_t* codes) {
  std::fill_n(codes, layout.num_coefficients() * kTileTokens, std::uint8_t{0});
  for_each_coefficient(layout, [&](std::int64_t coefficient, int bits, std::int64_t first) {
    for_each_plane(bits, first, [&](int plane, int shift, std::int64_t byte) {
      for (std::int64_t token = 0; token < kTileTokens; ++token) {
        const std::int64_t bit = token * plane;
        const int part = (tile[byte + bit / 8] >> bit % 8) & ((1 << plane) - 1);
        std::uint8_t& code = codes[coefficient * kTileTokens + token];
        code = static_cast<std::uint8_t>(code | part << shift);
      }
    });
  });
}

void tile_gains(const TileLayout& layout, const std::uint8_t* tile, float* gains) {
  for (std::int64_t token = 0; token < kTileTokens; ++token) {
    gains[token] =
        kGains[layout.gain ? std::min<int>(tile[layout.code_bytes() + token], kNumGains - 1)
                           : kUnitGain];
  }
}

}  // namespace kvc

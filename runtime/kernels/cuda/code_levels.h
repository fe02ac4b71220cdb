// Codes of a tile (runtime/kernels/code_tiles.h) as levels, pairs of float16 numbers, which are exact: a plane's words at
// once, not code by code.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/device_tiles.h"

namespace kvc {

constexpr int kGroupCoefficients = 8;

// Up to eight coefficients of one width; with no width: none.
struct CodeGroup {
  int bits, byte;    // the first byte of the first one
  int first, count;  // coefficients first .. first + count - 1
};
KVC_HOST_DEVICE CodeGroup code_group(const DeviceTiles& tiles, int group) {
  int first = 0, byte = 0;
  KVC_UNROLL
  for (int bits = kMostCodeBits; bits >= 1; --bits) {
    const int of_width = tiles.coefficients[bits], done = kGroupCoefficients * group;
    if (done < of_width) {
      const int left = of_width - done;
      return {bits, byte + 4 * bits * done, first + done,
              left < kGroupCoefficients ? left : kGroupCoefficients};
    }
    group -= (of_width + kGroupCoefficients - 1) / kGroupCoefficients;
    first += of_width;
    byte += 4 * bits * of_width;
  }
  return {0, 0, first, 0};
}
KVC_HOST_DEVICE int num_code_groups(const DeviceTiles& tiles) {
  int groups = 0;
  for (int bits = 1; bits <= kMostCodeBits; ++bits) {
    groups += (tiles.coefficients[bits] + kGroupCoefficients - 1) / kGroupCoefficients;
  }
  return groups;
}
// The most that so many coefficients make, an even number. Groups behind a block's own have no width.
KVC_HOST_DEVICE constexpr int most_code_groups(int coefficients) {
  const int whole = (coefficients + kGroupCoefficients - 1) / kGroupCoefficients;
  return (whole + kMostCodeBits) / 2 * 2;
}
// Bytes behind a tile that unpacking a group of fewer coefficients may read.
constexpr int kGroupOverrun = (kGroupCoefficients - 1) * 4 * kMostCodeBits;

// Eight codes of a plane of p bits, as two runs of four: number j of the first run is in bits p j and higher, that of the
// second one in bits 16 + p j. Planes of 8 bits: numbers 0 and 1 of both runs in one word, 2 and 3 in another.
//
// Two coefficients of tokens 4 quad .. 4 quad + 3.
struct TokenPlanes {
  const std::uint8_t *first, *second;  // each one's first byte
  int quad;

  template <class T>
  KVC_HOST_DEVICE std::uint32_t read(const std::uint8_t* codes, int at) const {
    return *reinterpret_cast<const T*>(codes + at);
  }
  KVC_HOST_DEVICE void eight(std::uint32_t (&y)[2]) const {
    const std::uint32_t a = read<std::uint32_t>(first, 4 * quad);
    const std::uint32_t b = read<std::uint32_t>(second, 4 * quad);
    y[0] = (a & 0xFFFFu) | b << 16;
    y[1] = a >> 16 | (b & 0xFFFF0000u);
  }
  KVC_HOST_DEVICE std::uint32_t four(int at) const {
    return read<std::uint16_t>(first, at + 2 * quad) | read<std::uint16_t>(second, at + 2 * quad)
                                                           << 16;
  }
  KVC_HOST_DEVICE std::uint32_t two(int at) const {
    return read<std::uint8_t>(first, at + quad) | read<std::uint8_t>(second, at + quad) << 16;
  }
  KVC_HOST_DEVICE std::uint32_t one(int at) const {
    const std::uint32_t both =
        read<std::uint8_t>(first, at + quad / 2) | read<std::uint8_t>(second, at + quad / 2) << 16;
    return both >> (4 * (quad % 2));
  }
};
// One coefficient of tokens 8 eighth .. 8 eighth + 7.
struct CoefficientPlanes {
  const std::uint8_t* codes;
  int eighth;

  KVC_HOST_DEVICE void eight(std::uint32_t (&y)[2]) const {
    const auto* words = reinterpret_cast<const std::uint32_t*>(codes) + 2 * eighth;
    y[0] = (words[0] & 0xFFFFu) | words[1] << 16;
    y[1] = words[0] >> 16 | (words[1] & 0xFFFF0000u);
  }
  KVC_HOST_DEVICE std::uint32_t four(int at) const {
    return reinterpret_cast<const std::uint32_t*>(codes + at)[eighth];
  }
  KVC_HOST_DEVICE std::uint32_t two(int at) const {
    const std::uint32_t all = reinterpret_cast<const std::uint16_t*>(codes + at)[eighth];
    return all | all << 8;
  }
  KVC_HOST_DEVICE std::uint32_t one(int at) const {
    const std::uint32_t all = codes[at + eighth];
    return all | all << 12;
  }
};

// Levels of codes of `bits` bits, code_level() of each: pair j has number j of the first run and of the second one.
template <class Planes>
KVC_HOST_DEVICE void unpack_levels(int bits, const Planes& planes, std::uint32_t (&pairs)[4]) {
  // 512 + code + 1/2 is a float16 whose lowest bits are twice the code, and 1.
  constexpr std::uint32_t kHalf = 0x60016001u;
  KVC_UNROLL
  for (int j = 0; j < 4; ++j) {
    pairs[j] = kHalf;
  }
  if (bits == 8) {
    std::uint32_t y[2];
    planes.eight(y);
    KVC_UNROLL
    for (int j = 0; j < 4; ++j) {
      pairs[j] += (y[j / 2] >> (8 * (j % 2)) & 0x00FF00FFu) << 1;
    }
  } else {
    int left = bits, at = 0;
    const auto add = [&](int plane, std::uint32_t mask, std::uint32_t y) {
      left -= plane;
      at += 4 * plane;
      const std::uint32_t unit = 2u << left;
      KVC_UNROLL
      for (int j = 0; j < 4; ++j) {
        pairs[j] += (y >> (plane * j) & mask) * unit;
      }
    };
    if ((bits & 4) != 0) {
      add(4, 0x000F000Fu, planes.four(at));
    }
    if ((bits & 2) != 0) {
      add(2, 0x00030003u, planes.two(at));
    }
    if ((bits & 1) != 0) {
      add(1, 0x00010001u, planes.one(at));
    }
  }
  const auto base = -512.0f - static_cast<float>(1 << bits >> 1);
  const std::uint32_t below = pack_pair<Float16>(base, base);
  KVC_UNROLL
  for (int j = 0; j < 4; ++j) {
    pairs[j] = add_pairs(pairs[j], below);
  }
}

}  // namespace kvc

// Numbers as codes and their words. decode_tiles: grid (tile), a thread takes one coefficient of one token after the other.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/code_tiles_device.h"
#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// A plane of a coefficient: `plane` bits of every code from bit `shift` on, in words `first` .. first + plane - 1
// of the coefficient's `bits` words.
struct CodePlane {
  int plane, shift, first;
};
KVC_HOST_DEVICE CodePlane plane_of_word(int bits, int word) {
  int left = bits, first = 0;
  for (int plane = 8; plane >= 1; plane /= 2) {
    if ((bits & plane) != 0) {
      left -= plane;
      if (word < first + plane) {
        return {plane, left, first};
      }
      first += plane;
    }
  }
  return {0, 0, first};
}

// Word `word` of a coefficient's planes from its 32 codes, of which code(token) gives one.
template <class Code>
KVC_HOST_DEVICE std::uint32_t packed_word(int bits, int word, const Code& code) {
  const CodePlane plane = plane_of_word(bits, word);
  const int per_word = 32 / plane.plane, token = (word - plane.first) * per_word;
  const std::uint32_t mask = (1u << plane.plane) - 1;
  std::uint32_t packed = 0;
  for (int i = 0; i < per_word; ++i) {
    packed |= (code(token + i) >> plane.shift & mask) << (i * plane.plane);
  }
  return packed;
}

// floor(z / step) within the codes of a width, as a float.
KVC_HOST_DEVICE float quantised_level(float z, float step, int bits) {
  const float low = -static_cast<float>(1 << (bits - 1)), high = -low - 1;
  const float level = floorf(z / step);
  const float above = level > low ? level : low;
  return above < high ? above : high;
}

struct DecodeTilesKernel : Kernel<DecodeTiles, 256> {
  static constexpr const char* kName = "decode_tiles";

  template <class Thread>
  static KVC_DEVICE void run(const DecodeTiles& params, Thread& thread) {
    const DeviceTiles& tiles = params.tiles;
    const int tile = thread.block_x(), count = tiles.num_coefficients;
    const std::uint8_t* codes = tile_at(tiles, 0, params.first_tile + tile);
    float* levels = params.levels + static_cast<std::int64_t>(tile) * kDeviceTileTokens * count;
    for (int i = thread.index(); i < kDeviceTileTokens * count; i += thread.count()) {
      const int token = i / count, coefficient = i % count;
      const CoefficientPlace place = coefficient_place(tiles, coefficient);
      const int code = unpack_code(codes + place.byte, place.bits, token);
      levels[i] = code_level(code, place.bits) * tile_gain(tiles, codes, token);
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const DecodeTiles& params, const Launcher& launcher) {
  return launcher.template run<DecodeTilesKernel>(params, {params.count},
                                                  launcher.threads(DecodeTilesKernel::kThreads));
}

}  // namespace kvc

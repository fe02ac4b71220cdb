// encode_tiles: grid (tile), one warp; a lane quantises a token, then the lanes pack words of 32 / p codes each.
// decode_tiles: grid (tile), a thread takes one coefficient of one token after the other.
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

KVC_DEVICE float gain_error(const DeviceTiles& tiles, const float* z, const float* steps,
                            float gain) {
  float sum = 0;
  int c = 0;
  KVC_UNROLL
  for (int bits = 8; bits >= 1; --bits) {
    for (const int end = c + tiles.coefficients[bits]; c < end; ++c) {
      const float step = steps[c] * gain;
      const float difference = z[c] - (quantised_level(z[c], step, bits) + 0.5f) * step;
      sum += difference * difference;
    }
  }
  return sum;
}

// The first gain of least error.
KVC_DEVICE int best_gain(const DeviceTiles& tiles, const float* z, const float* steps) {
  int best = 2;
  float least = INFINITY;
  for (int gain = 0; gain < 8; ++gain) {
    const float error = gain_error(tiles, z, steps, gain_of(gain));
    if (error < least) {
      least = error;
      best = gain;
    }
  }
  return best;
}

// A block's tile, and its coefficients [32, num_coefficients].
struct BlockTile {
  std::uint8_t* codes;
  float* coefficients;
};
template <class Thread>
KVC_DEVICE BlockTile tile_of_block(const CodeTilesParams& params, const Thread& thread) {
  const int tile = thread.block_x();
  return {const_cast<std::uint8_t*>(tile_at(params.tiles, 0, params.first_tile + tile)),
          params.coefficients +
              static_cast<std::int64_t>(tile) * kDeviceTileTokens * params.tiles.num_coefficients};
}

struct EncodeTilesKernel : Kernel<CodeTilesParams, 32> {
  static constexpr const char* kName = "encode_tiles";

  template <class Thread>
  static KVC_DEVICE void run(const CodeTilesParams& params, Thread& thread) {
    const DeviceTiles& tiles = params.tiles;
    const BlockTile own = tile_of_block(params, thread);
    const int lane = thread.index(), count = tiles.num_coefficients;
    int gain = 2;
    if (tiles.gain) {
      gain = best_gain(tiles, own.coefficients + lane * count, params.steps);
      own.codes[tiles.code_bytes + lane] = static_cast<std::uint8_t>(gain);
    }
    auto* gains = reinterpret_cast<float*>(thread.shared());  // [32]
    gains[lane] = gain_of(gain);
    thread.sync();
    auto* words = reinterpret_cast<std::uint32_t*>(own.codes);
    int c = 0;
    KVC_UNROLL
    for (int bits = 8; bits >= 1; --bits) {
      const int of_width = tiles.coefficients[bits];
      for (int i = lane; i < of_width * bits; i += thread.count()) {
        const int coefficient = c + i / bits;
        words[i] = packed_word(bits, i % bits, [&](int token) {
          const float step = params.steps[coefficient] * gains[token];
          const float level =
              quantised_level(own.coefficients[token * count + coefficient], step, bits);
          return static_cast<std::uint32_t>(static_cast<int>(level) + (1 << (bits - 1)));
        });
      }
      words += of_width * bits;
      c += of_width;
    }
  }
};

struct DecodeTilesKernel : Kernel<CodeTilesParams, 256> {
  static constexpr const char* kName = "decode_tiles";

  template <class Thread>
  static KVC_DEVICE void run(const CodeTilesParams& params, Thread& thread) {
    const DeviceTiles& tiles = params.tiles;
    const BlockTile own = tile_of_block(params, thread);
    const int count = tiles.num_coefficients;
    for (int i = thread.index(); i < kDeviceTileTokens * count; i += thread.count()) {
      const int token = i / count, coefficient = i % count;
      const CoefficientPlace place = coefficient_place(tiles, coefficient);
      const int code = unpack_code(own.codes + place.byte, place.bits, token);
      own.coefficients[i] = code_level(code, place.bits) * tile_gain(tiles, own.codes, token);
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const CodeTilesParams& params, const Launcher& launcher) {
  const LaunchGrid grid{params.count};
  return params.decodes
             ? launcher.template run<DecodeTilesKernel>(
                   params, grid, launcher.threads(DecodeTilesKernel::kThreads))
             : launcher.template run<EncodeTilesKernel>(params, grid, EncodeTilesKernel::kThreads,
                                                        kDeviceTileTokens * sizeof(float));
}

}  // namespace kvc

// encode_tiles: grid (tile), one warp; a lane quantises a token, then the lanes pack words of 32 / p codes each.
// decode_tiles: grid (tile), a thread takes one coefficient of one token after the other.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/code_tiles_device.h"
#include "runtime/kernels/cuda/device_numbers.h"

namespace kvc {

KVC_HOST_DEVICE float tile_gain(int gain) {
  switch (gain) {
    case 0:
      return 0.5f;
    case 1:
      return 0.70710678f;
    case 2:
      return 1.0f;
    case 3:
      return 1.41421356f;
    default:
      return static_cast<float>(1 << ((gain < 7 ? gain : 7) - 3));
  }
}

// A coefficient's width and its first byte in a tile.
struct CoefficientPlace {
  int bits, byte;
};
KVC_HOST_DEVICE CoefficientPlace coefficient_place(const DeviceTileLayout& layout, int index) {
  int first = 0, byte = 0;
  for (int bits = 8; bits >= 1; --bits) {
    const int of_width = layout.coefficients[bits];
    if (index < first + of_width) {
      return {bits, byte + 4 * bits * (index - first)};
    }
    first += of_width;
    byte += 4 * bits * of_width;
  }
  return {0, byte};
}

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

// One token's code from a coefficient's words.
KVC_HOST_DEVICE std::uint32_t unpacked_code(int bits, const std::uint32_t* words, int token) {
  std::uint32_t code = 0;
  int left = bits;
  for (int plane = 8; plane >= 1; plane /= 2) {
    if ((bits & plane) != 0) {
      left -= plane;
      const int bit = token * plane;
      code |= (words[bit / 32] >> bit % 32 & ((1u << plane) - 1)) << left;
      words += plane;
    }
  }
  return code;
}

// floor(z / step) within the codes of a width, as a float.
KVC_HOST_DEVICE float code_level(float z, float step, int bits) {
  const float low = -static_cast<float>(1 << (bits - 1)), high = -low - 1;
  const float level = floorf(z / step);
  const float above = level > low ? level : low;
  return above < high ? above : high;
}

KVC_DEVICE float gain_error(const DeviceTileLayout& layout, const float* z, const float* steps,
                            float gain) {
  float sum = 0;
  int c = 0;
  KVC_UNROLL
  for (int bits = 8; bits >= 1; --bits) {
    for (const int end = c + layout.coefficients[bits]; c < end; ++c) {
      const float step = steps[c] * gain;
      const float difference = z[c] - (code_level(z[c], step, bits) + 0.5f) * step;
      sum += difference * difference;
    }
  }
  return sum;
}

// The first gain of least error.
KVC_DEVICE int best_gain(const DeviceTileLayout& layout, const float* z, const float* steps) {
  int best = 2;
  float least = INFINITY;
  for (int gain = 0; gain < 8; ++gain) {
    const float error = gain_error(layout, z, steps, tile_gain(gain));
    if (error < least) {
      least = error;
      best = gain;
    }
  }
  return best;
}

template <class Thread>
KVC_DEVICE void encode_tiles_body(const CodeTilesParams& params, Thread& thread) {
  const DeviceTileLayout& layout = params.layout;
  const int tile = thread.block_x(), lane = thread.index();
  auto* to = static_cast<std::uint8_t*>(params.tiles[tile]);
  const float* z = params.coefficients +
                   (static_cast<std::int64_t>(tile) * kDeviceTileTokens + lane) * layout.count;
  int gain = 2;
  if (layout.gain) {
    gain = best_gain(layout, z, params.steps);
    to[layout.code_bytes + lane] = static_cast<std::uint8_t>(gain);
  }
  auto* gains = reinterpret_cast<float*>(thread.shared());  // [32]
  gains[lane] = tile_gain(gain);
  thread.sync();
  const float* all =
      params.coefficients + static_cast<std::int64_t>(tile) * kDeviceTileTokens * layout.count;
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  int c = 0;
  KVC_UNROLL
  for (int bits = 8; bits >= 1; --bits) {
    const int of_width = layout.coefficients[bits];
    for (int i = lane; i < of_width * bits; i += thread.count()) {
      const int coefficient = c + i / bits;
      words[i] = packed_word(bits, i % bits, [&](int token) {
        const float step = params.steps[coefficient] * gains[token];
        const float level = code_level(
            all[static_cast<std::int64_t>(token) * layout.count + coefficient], step, bits);
        return static_cast<std::uint32_t>(static_cast<int>(level) + (1 << (bits - 1)));
      });
    }
    words += of_width * bits;
    c += of_width;
  }
}

template <class Thread>
KVC_DEVICE void decode_tiles_body(const CodeTilesParams& params, Thread& thread) {
  const DeviceTileLayout& layout = params.layout;
  const int tile = thread.block_x();
  const auto* from = static_cast<const std::uint8_t*>(params.tiles[tile]);
  float* to =
      params.coefficients + static_cast<std::int64_t>(tile) * kDeviceTileTokens * layout.count;
  for (int i = thread.index(); i < kDeviceTileTokens * layout.count; i += thread.count()) {
    const int token = i / layout.count, coefficient = i % layout.count;
    const CoefficientPlace place = coefficient_place(layout, coefficient);
    const std::uint32_t code =
        unpacked_code(place.bits, reinterpret_cast<const std::uint32_t*>(from + place.byte), token);
    const float gain = tile_gain(layout.gain ? from[layout.code_bytes + token] : 2);
    const float first_level = 0.5f - static_cast<float>(1 << (place.bits - 1));
    to[i] = (static_cast<float>(code) + first_level) * (params.steps[coefficient] * gain);
  }
}

}  // namespace kvc

// Tiles of 32 rows of one KV head: from a store to a warp's shared memory, and from codes to 16-bit numbers.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_tiles.h"

namespace kvc {

// A tile of codes in shared memory: rows of codes, then the scales.
template <int kHeadDim>
struct CodeTileShape {
  static constexpr int kRowBytes = kHeadDim + 16;
  static constexpr int kScales = kTileRows * kRowBytes;
  static constexpr int kBytes = kScales + 4 * kHeadDim;  // per row and per channel alike
};

// Copies kHeadDim channels of a tile's rows, of which each is `stride` bytes behind the one before; zeros for rows from
// `count` on and for channels from `width` on, a multiple of 8.
template <int kHeadDim, class Thread>
KVC_DEVICE void copy_number_rows(Thread& thread, const std::uint8_t* first, std::int64_t stride,
                                 int count, std::uint16_t* to, int width = kHeadDim) {
  constexpr int kPieces = kHeadDim / 8;
  KVC_UNROLL_BY_4
  for (int i = 0; i < kPieces; ++i) {
    const int piece = i * 32 + thread.lane(), row = piece / kPieces, at = piece % kPieces;
    const bool valid = row < count && 8 * at < width;
    thread.template copy_async<16>(to + row * (kHeadDim + kPadding) + 8 * at,
                                   first + (valid ? row * stride + 16 * at : 0), valid);
  }
}

// The same of a store's tile: channels from `channel` on.
template <int kHeadDim, class Thread>
KVC_DEVICE void copy_numbers(Thread& thread, const DeviceRows& rows, int sequence, int tile,
                             int channel, int count, std::uint16_t* to, int width = kHeadDim) {
  const RowPlace place = row_place(rows, sequence, tile * kTileRows, channel);
  copy_number_rows<kHeadDim>(thread, place.channels, row_stride(rows), count, to, width);
}

// The same of codes and 8-bit floats, with their scales; `place`: the first row's. Words of 4 bytes: rows need no other
// alignment.
template <int kHeadDim, class Thread>
KVC_DEVICE void copy_code_rows(Thread& thread, const DeviceRows& rows, const RowPlace& place,
                               std::int64_t stride, int count, std::uint8_t* to) {
  using Shape = CodeTileShape<kHeadDim>;
  const int row_bytes = channel_bytes(rows.element, kHeadDim);
  if (row_bytes % 16 == 0 && stride % 16 == 0) {
    const int pieces = row_bytes / 16;
    for (int piece = thread.lane(); piece < kTileRows * pieces; piece += 32) {
      const int row = piece / pieces, at = 16 * (piece % pieces);
      const bool valid = row < count;
      thread.template copy_async<16>(to + row * Shape::kRowBytes + at,
                                     place.channels + (valid ? row * stride + at : 0), valid);
    }
  } else {
    const int pieces = row_bytes / 4;
    for (int piece = thread.lane(); piece < kTileRows * pieces; piece += 32) {
      const int row = piece / pieces, at = 4 * (piece % pieces);
      const bool valid = row < count;
      thread.template copy_async<4>(to + row * Shape::kRowBytes + at,
                                    place.channels + (valid ? row * stride + at : 0), valid);
    }
  }
  if (!is_coded(rows.element)) {
    return;
  }
  std::uint8_t* scales = to + Shape::kScales;
  constexpr int kGroups = kHeadDim / kScaledChannels;
  if (rows.per_channel) {  // kHeadDim scales, then as many minima
    for (int piece = thread.lane(); piece < kHeadDim; piece += 32) {
      const bool minima = piece >= kHeadDim / 2;
      const int at = 4 * (piece % (kHeadDim / 2));
      thread.template copy_async<4>(scales + 4 * piece,
                                    place.scales + (minima ? place.minimum_offset : 0) + at, true);
    }
  } else {  // [32, groups] scale and minimum
    for (int piece = thread.lane(); piece < kTileRows * kGroups; piece += 32) {
      const int row = piece / kGroups, at = 4 * (piece % kGroups);
      const bool valid = row < count;
      thread.template copy_async<4>(scales + 4 * piece,
                                    place.scales + (valid ? row * stride + at : 0), valid);
    }
  }
}

// The same of a store's tile: channels from `channel` on.
template <int kHeadDim, class Thread>
KVC_DEVICE void copy_codes(Thread& thread, const DeviceRows& rows, int sequence, int tile,
                           int channel, int count, std::uint8_t* to) {
  copy_code_rows<kHeadDim>(thread, rows, row_place(rows, sequence, tile * kTileRows, channel),
                           row_stride(rows), count, to);
}

struct FourNumbers {
  float x[4];
};

KVC_HOST_DEVICE FourNumbers four_floats(const float* from) {  // 16-byte aligned
#ifdef __CUDA_ARCH__
  const float4 v = *reinterpret_cast<const float4*>(from);
  return {{v.x, v.y, v.z, v.w}};
#else
  return {{from[0], from[1], from[2], from[3]}};
#endif
}

// Numbers channel .. channel + 3 (a multiple of 4) of one row of a tile of codes.
template <int kHeadDim>
KVC_HOST_DEVICE FourNumbers decode_four(const DeviceRows& rows, const std::uint8_t* tile, int row,
                                        int channel) {
  using Shape = CodeTileShape<kHeadDim>;
  const std::uint32_t codes = four_codes(rows.element, tile + row * Shape::kRowBytes, channel);
  FourNumbers numbers;
  if (rows.element == DeviceElement::kFloat8) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      numbers.x[i] = rows.scale * float8_to_float(static_cast<std::uint8_t>(codes >> (8 * i)));
    }
    return numbers;
  }
  const auto* scales =
      reinterpret_cast<const std::uint32_t*>(tile + Shape::kScales);  // two halves each
  if (rows.per_channel) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t scale = scales[(channel + i) / 2],
                          minimum = scales[(kHeadDim + channel + i) / 2];
      numbers.x[i] = i % 2 == 0 ? dequantise(codes >> (8 * i) & 0xFF, low_of_pair<Float16>(scale),
                                             low_of_pair<Float16>(minimum))
                                : dequantise(codes >> (8 * i) & 0xFF, high_of_pair<Float16>(scale),
                                             high_of_pair<Float16>(minimum));
    }
    return numbers;
  }
  const std::uint32_t pair = scales[row * (kHeadDim / kScaledChannels) + channel / kScaledChannels];
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    numbers.x[i] = dequantise(codes >> (8 * i) & 0xFF, low_of_pair<Float16>(pair),
                              high_of_pair<Float16>(pair));
  }
  return numbers;
}

template <class T>
KVC_HOST_DEVICE void store_four(T* to, const FourNumbers& numbers) {  // 8-byte aligned
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  words[0] = pack_pair<T>(numbers.x[0], numbers.x[1]);
  words[1] = pack_pair<T>(numbers.x[2], numbers.x[3]);
}

// Each lane decodes one row.
template <class T, int kHeadDim, class Thread>
KVC_DEVICE void decode_tile(Thread& thread, const DeviceRows& rows, const std::uint8_t* codes,
                            T* to) {
  T* row = to + thread.lane() * (kHeadDim + kPadding);
  for (int channel = 0; channel < kHeadDim; channel += 4) {
    store_four(row + channel, decode_four<kHeadDim>(rows, codes, thread.lane(), channel));
  }
}

// A raw key's numbers before its rotation.
template <int kHeadDim>
KVC_HOST_DEVICE FourNumbers raw_four(const DeviceRows& rows, const DeviceRawKeys& raw,
                                     const float* bias, const std::uint8_t* codes, int row,
                                     int channel, float inverse_rms) {
  FourNumbers numbers = decode_four<kHeadDim>(rows, codes, row, channel);
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    numbers.x[i] += bias == nullptr ? 0.0f : bias[channel + i];
    numbers.x[i] *= raw.norm == nullptr ? 1.0f : inverse_rms * raw.norm[channel + i];
  }
  return numbers;
}

// Each lane decodes one raw key and turns it by its position.
template <class T, int kHeadDim, class Thread>
KVC_DEVICE void decode_raw_tile(Thread& thread, const DeviceRows& rows, const DeviceRawKeys& raw,
                                int kv_head, int position, const std::uint8_t* codes, T* to) {
  const int lane = thread.lane();
  T* row = to + lane * (kHeadDim + kPadding);
  const float* bias = raw.bias == nullptr ? nullptr : raw.bias + kv_head * kHeadDim;
  float inverse_rms = 1;
  if (raw.norm != nullptr) {
    float squares = 0;
    for (int channel = 0; channel < kHeadDim; channel += 4) {
      const FourNumbers numbers = decode_four<kHeadDim>(rows, codes, lane, channel);
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float x = numbers.x[i] + (bias == nullptr ? 0.0f : bias[channel + i]);
        squares += x * x;
      }
    }
    inverse_rms = 1.0f / sqrtf(squares / kHeadDim + raw.norm_epsilon);
  }
  const auto read = [&](int channel) {
    return raw_four<kHeadDim>(rows, raw, bias, codes, lane, channel, inverse_rms);
  };
  const DeviceRope& rope = raw.rope;
  const float* cos_row = rope.cos + static_cast<std::int64_t>(position) * rope.num_pairs;
  const float* sin_row = rope.sin + static_cast<std::int64_t>(position) * rope.num_pairs;
  for (int pair = 0; pair < rope.num_pairs; pair += 4) {
    const FourNumbers cos = four_floats(cos_row + pair), sin = four_floats(sin_row + pair);
    const int first = rope.interleaved ? 2 * pair : pair;
    const int second = rope.interleaved ? 2 * pair + 4 : pair + rope.num_pairs;
    FourNumbers a = read(first), b = read(second);
    if (rope.interleaved) {
      rotate_pair(cos.x[0], sin.x[0], a.x[0], a.x[1]);
      rotate_pair(cos.x[1], sin.x[1], a.x[2], a.x[3]);
      rotate_pair(cos.x[2], sin.x[2], b.x[0], b.x[1]);
      rotate_pair(cos.x[3], sin.x[3], b.x[2], b.x[3]);
    } else {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        rotate_pair(cos.x[i], sin.x[i], a.x[i], b.x[i]);
      }
    }
    store_four(row + first, a);
    store_four(row + second, b);
  }
  for (int channel = 2 * rope.num_pairs; channel < kHeadDim; channel += 4) {
    store_four(row + channel, read(channel));
  }
}

}  // namespace kvc

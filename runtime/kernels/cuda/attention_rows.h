// Tiles of 32 rows of one KV head: from a store to a warp's shared memory, and from codes to 16-bit numbers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_tiles.h"
#include "runtime/kernels/cuda/device_loads.h"

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

// `bytes` from `first`, then as many from `second`; 4-byte aligned.
template <class Thread>
KVC_DEVICE void copy_both(Thread& thread, const std::uint8_t* first, const std::uint8_t* second,
                          int bytes, std::uint8_t* to) {
  const auto all = reinterpret_cast<std::uintptr_t>(first) |
                   reinterpret_cast<std::uintptr_t>(second) | static_cast<std::uintptr_t>(bytes);
  if (all % 16 == 0) {
    KVC_NO_UNROLL
    for (int i = 16 * thread.lane(); i < 2 * bytes; i += 16 * 32) {
      thread.template copy_async<16>(to + i, i < bytes ? first + i : second + (i - bytes), true);
    }
  } else {
    KVC_NO_UNROLL
    for (int i = 4 * thread.lane(); i < 2 * bytes; i += 4 * 32) {
      thread.template copy_async<4>(to + i, i < bytes ? first + i : second + (i - bytes), true);
    }
  }
}
// `count` cosines, then as many sines.
template <class Thread>
KVC_DEVICE void copy_angles(Thread& thread, const float* cos, const float* sin, int count,
                            std::uint8_t* to) {
  copy_both(thread, reinterpret_cast<const std::uint8_t*>(cos),
            reinterpret_cast<const std::uint8_t*>(sin), 4 * count, to);
}

// kBytes of each of a tile's rows, kPiece at a time; zeros for rows from `count` on. A lane keeps to its column where the pieces of
// a row divide a warp.
template <int kPiece, int kBytes, int kRowBytes, class Thread>
KVC_DEVICE void copy_pieces(Thread& thread, const std::uint8_t* from, std::int64_t stride,
                            int count, std::uint8_t* to) {
  constexpr int kPieces = kBytes / kPiece, kRows = 32 / kPieces;  // rows at a time
  static_assert(kBytes % kPiece == 0 && 32 % kPieces == 0, "a piece of as many rows for all lanes");
  const int first = thread.lane() / kPieces, at = kPiece * (thread.lane() % kPieces);
  const std::uint8_t* source = from + first * stride + at;
  const std::int64_t step = kRows * stride;
  KVC_UNROLL
  for (int i = 0; i < kPieces; ++i) {
    const bool valid = first + i * kRows < count;
    thread.template copy_async<kPiece>(to + (first + i * kRows) * kRowBytes + at,
                                       valid ? source : from, valid);
    source += step;
  }
}
template <int kBytes, int kRowBytes, class Thread>
KVC_DEVICE void copy_code_rows(Thread& thread, const std::uint8_t* from, std::int64_t stride,
                               int count, std::uint8_t* to) {
  if constexpr (kBytes % 16 == 0) {
    if ((reinterpret_cast<std::uintptr_t>(from) | static_cast<std::uintptr_t>(stride)) % 16 == 0) {
      return copy_pieces<16, kBytes, kRowBytes>(thread, from, stride, count, to);
    }
  }
  KVC_NO_UNROLL
  for (int piece = thread.lane(); piece < kTileRows * (kBytes / 4); piece += 32) {
    const int row = piece / (kBytes / 4), at = 4 * (piece % (kBytes / 4));
    const bool valid = row < count;
    thread.template copy_async<4>(to + row * kRowBytes + at, from + (valid ? row * stride + at : 0),
                                  valid);
  }
}

// Channels from `channel` on of a store's tile.
template <int kHeadDim, class Thread>
KVC_DEVICE void copy_numbers(Thread& thread, const DeviceRows& rows, int sequence, int tile,
                             int channel, int count, std::uint16_t* to, int width = kHeadDim) {
  const RowPlace place = row_place(rows, sequence, tile * kTileRows, channel);
  copy_number_rows<kHeadDim>(thread, place.channels, row_stride(rows), count, to, width);
}

// kHeadDim channels of codes or 8-bit floats, with their scales; `place`: the first row's. Words of 4 bytes: rows need no
// other alignment.
template <int kHeadDim, class Thread>
KVC_DEVICE void copy_code_tile(Thread& thread, const DeviceRows& rows, const RowPlace& place,
                               std::int64_t stride, int count, std::uint8_t* to) {
  using Shape = CodeTileShape<kHeadDim>;
  if (rows.element == DeviceElement::kInt4) {
    copy_code_rows<kHeadDim / 2, Shape::kRowBytes>(thread, place.channels, stride, count, to);
  } else {
    copy_code_rows<kHeadDim, Shape::kRowBytes>(thread, place.channels, stride, count, to);
  }
  if (!is_coded(rows.element)) {
    return;
  }
  std::uint8_t* scales = to + Shape::kScales;
  if (rows.per_channel) {  // kHeadDim scales, then as many minima, of 2 bytes each
    copy_both(thread, place.scales, place.scales + place.minimum_offset, 2 * kHeadDim, scales);
  } else {  // [32, groups] scale and minimum
    constexpr int kBytes = kHeadDim / kScaledChannels * 4;
    copy_code_rows<kBytes, kBytes>(thread, place.scales, stride, count, scales);
  }
}

// The same of a store's tile: channels from `channel` on.
template <int kHeadDim, class Thread>
KVC_DEVICE void copy_codes(Thread& thread, const DeviceRows& rows, int sequence, int tile,
                           int channel, int count, std::uint8_t* to) {
  copy_code_tile<kHeadDim>(thread, rows, row_place(rows, sequence, tile * kTileRows, channel),
                           row_stride(rows), count, to);
}

// How codes of a tile become numbers.
enum class CodeForm { kFloat8, kPerRow, kPerChannel };
KVC_HOST_DEVICE CodeForm code_form(const DeviceRows& rows) {
  return !is_coded(rows.element) ? CodeForm::kFloat8
         : rows.per_channel      ? CodeForm::kPerChannel
                                 : CodeForm::kPerRow;
}
// use(std::integral_constant) of the form.
template <class Use>
KVC_HOST_DEVICE void with_code_form(const DeviceRows& rows, const Use& use) {
  switch (code_form(rows)) {
    case CodeForm::kFloat8:
      return use(std::integral_constant<CodeForm, CodeForm::kFloat8>{});
    case CodeForm::kPerRow:
      return use(std::integral_constant<CodeForm, CodeForm::kPerRow>{});
    case CodeForm::kPerChannel:
      return use(std::integral_constant<CodeForm, CodeForm::kPerChannel>{});
  }
}

// Those of channels channel .. channel + 3 (a multiple of 4); per row alone, all the same. minimum: minimum_below_base()
struct FourScales {
  FourNumbers scale, minimum;
};
template <int kHeadDim>
KVC_HOST_DEVICE FourScales channel_scales(const std::uint8_t* tile, int channel) {
  const auto* words =
      reinterpret_cast<const std::uint32_t*>(tile + CodeTileShape<kHeadDim>::kScales);
  std::uint32_t scale[2], minimum[2];
  two_words(words + channel / 2, scale);
  two_words(words + (kHeadDim + channel) / 2, minimum);
  FourScales scales;
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    const bool high = i % 2 != 0;
    scales.scale.x[i] =
        high ? high_of_pair<Float16>(scale[i / 2]) : low_of_pair<Float16>(scale[i / 2]);
    scales.minimum.x[i] =
        minimum_below_base(scales.scale.x[i], high ? high_of_pair<Float16>(minimum[i / 2])
                                                   : low_of_pair<Float16>(minimum[i / 2]));
  }
  return scales;
}
template <int kHeadDim>
KVC_HOST_DEVICE FourScales row_scales(const std::uint8_t* tile, int row, int channel) {
  const auto* words =
      reinterpret_cast<const std::uint32_t*>(tile + CodeTileShape<kHeadDim>::kScales);
  const std::uint32_t both = words[row * (kHeadDim / kScaledChannels) + channel / kScaledChannels];
  const float scale = low_of_pair<Float16>(both);
  const float minimum = minimum_below_base(scale, high_of_pair<Float16>(both));
  FourScales scales;
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    scales.scale.x[i] = scale;
    scales.minimum.x[i] = minimum;
  }
  return scales;
}

// Numbers of four codes, one a byte, of one row of a tile from `channel` on. of_channels: where scales are those of channels
template <int kHeadDim, CodeForm kForm>
KVC_HOST_DEVICE FourNumbers decode_four(const DeviceRows& rows, const std::uint8_t* tile,
                                        std::uint32_t codes, int row, int channel,
                                        const FourScales& of_channels) {
  FourNumbers numbers;
  if constexpr (kForm == CodeForm::kFloat8) {
    float8_to_floats(codes, rows.scale, numbers.x);
  } else {
    const FourScales scales =
        kForm == CodeForm::kPerRow ? row_scales<kHeadDim>(tile, row, channel) : of_channels;
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      numbers.x[i] = scales.minimum.x[i] + scales.scale.x[i] * byte_above_base(codes, i);
    }
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
  with_code_form(rows, [&](auto form) {
    constexpr CodeForm kForm = decltype(form)::value;
    for (int channel = 0; channel < kHeadDim; channel += 4) {
      FourScales scales{};
      if (kForm == CodeForm::kPerChannel) {
        scales = channel_scales<kHeadDim>(codes, channel);
      }
      const CodesPlace place = codes_place(rows.element, channel);
      const std::uint8_t* own = codes + thread.lane() * CodeTileShape<kHeadDim>::kRowBytes;
      store_four(row + channel, decode_four<kHeadDim, kForm>(rows, codes, four_codes(place, own),
                                                             thread.lane(), channel, scales));
    }
  });
}

}  // namespace kvc

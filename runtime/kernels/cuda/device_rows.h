// Rows of a KV store in GPU memory: laid out as runtime/kernels/kv_rows.h says, or as 8-bit floats.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/device_qualifiers.h"

namespace kvc {

enum class DeviceElement { kBFloat16, kFloat16, kFloat8, kInt8, kInt4 };

constexpr int kScaledRows = 32;  // kQuantisedRows of kv_rows.h
constexpr int kScaledChannels =
    32;  // its quantised_group: GPU kernels take head widths that 32 divides

// The rows of each sequence, `width` numbers each, in blocks of `block_rows`: row i of sequence s is row
// i % block_rows of blocks[s * max_blocks + i / block_rows].
//   bfloat16, float16  numbers
//   float8             numbers, times `scale`
//   int8, int4         codes with their scales and minima (kv_rows.h), per row or per channel
struct DeviceRows {
  const void* const* blocks = nullptr;  // in GPU memory, as what they point to; 16-byte aligned
  std::int64_t max_blocks = 0;
  int block_rows = 0;  // a multiple of kScaledRows
  int width = 0;
  DeviceElement element = DeviceElement::kBFloat16;
  bool per_channel = false;  // int8 and int4: scales of 32 rows' channels, otherwise of a row's 32
  float scale = 1;           // float8
};

// For a 16-bit type.
KVC_HOST_DEVICE std::uint16_t narrow_bits(DeviceElement element, float x) {
  return element == DeviceElement::kBFloat16 ? narrow_bits(BFloat16{}, x)
                                             : narrow_bits(Float16{}, x);
}

KVC_HOST_DEVICE float widened(DeviceElement element, std::uint16_t bits) {
  return element == DeviceElement::kBFloat16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
}

KVC_HOST_DEVICE bool is_coded(DeviceElement element) { return element >= DeviceElement::kInt8; }

// Bytes of `count` channels of one row, without scales.
KVC_HOST_DEVICE int channel_bytes(DeviceElement element, int count) {
  switch (element) {
    case DeviceElement::kInt4:
      return count / 2;
    case DeviceElement::kInt8:
    case DeviceElement::kFloat8:
      return count;
    default:
      return 2 * count;
  }
}

// Where one row's channels from `channel` on lie, a multiple of 32.
struct RowPlace {
  const std::uint8_t* channels;
  const std::uint8_t* scales;  // per row: [.., 2] scale and minimum; per channel: scales
  int minimum_offset;          // bytes from a scale to its minimum
};

KVC_HOST_DEVICE RowPlace row_place(const DeviceRows& rows, std::int64_t sequence, int row,
                                   int channel) {
  const auto* block = static_cast<const std::uint8_t*>(
      rows.blocks[sequence * rows.max_blocks + row / rows.block_rows]);
  const int in_block = row % rows.block_rows;
  const int code_bytes = channel_bytes(rows.element, rows.width);
  const int from = channel_bytes(rows.element, channel);
  if (!is_coded(rows.element)) {
    return {block + static_cast<std::int64_t>(in_block) * code_bytes + from, nullptr, 0};
  }
  if (!rows.per_channel) {
    const std::int64_t row_bytes = code_bytes + rows.width / kScaledChannels * 4;
    const std::uint8_t* codes = block + in_block * row_bytes;
    return {codes + from, codes + code_bytes + channel / kScaledChannels * 4, 2};
  }
  const std::int64_t group_bytes =
      static_cast<std::int64_t>(kScaledRows) * code_bytes + rows.width * 4;
  const std::uint8_t* group = block + in_block / kScaledRows * group_bytes;
  return {group + in_block % kScaledRows * static_cast<std::int64_t>(code_bytes) + from,
          group + static_cast<std::int64_t>(kScaledRows) * code_bytes + 2 * channel,
          2 * rows.width};
}

// A row of 32-bit numbers instead, in such blocks.
template <class T>
KVC_HOST_DEVICE T* row_of_words(const DeviceRows& rows, std::int64_t sequence, int row) {
  static_assert(sizeof(T) == 4, "a 32-bit number");
  auto* block = static_cast<T*>(
      const_cast<void*>(rows.blocks[sequence * rows.max_blocks + row / rows.block_rows]));
  return block + static_cast<std::int64_t>(row % rows.block_rows) * rows.width;
}

// From one row of a tile of kScaledRows rows (from a multiple of that on) to the next.
KVC_HOST_DEVICE std::int64_t row_stride(const DeviceRows& rows) {
  const bool beside = is_coded(rows.element) && !rows.per_channel;
  return channel_bytes(rows.element, rows.width) + (beside ? rows.width / kScaledChannels * 4 : 0);
}

// Where the codes of channels `channel` .. `channel` + 3, a multiple of 4, lie in a row's from a multiple of 32 channels on: in
// one word, from a bit on.
struct CodesPlace {
  int byte, shift;
  std::uint32_t mask;  // of the four, one a byte
};
KVC_HOST_DEVICE CodesPlace codes_place(DeviceElement element, int channel) {
  if (element != DeviceElement::kInt4) {
    return {channel, 0, 0xFFFFFFFFu};
  }
  const int half = channel & (kScaledChannels / 2);
  return {(channel & ~(kScaledChannels - 1)) / 2 + (channel & 15), half / 4, 0x0F0F0F0Fu};
}
// The four codes, one a byte. `codes`: the row's, 4-byte aligned.
KVC_HOST_DEVICE std::uint32_t four_codes(const CodesPlace& place, const std::uint8_t* codes) {
  return *reinterpret_cast<const std::uint32_t*>(codes + place.byte) >> place.shift & place.mask;
}

KVC_HOST_DEVICE float dequantise(std::uint32_t code, float scale, float minimum) {
  return minimum + scale * static_cast<float>(code);
}
// A minimum for byte_above_base() of a code instead; what rounding takes is below 2^-8 of a step.
KVC_HOST_DEVICE float minimum_below_base(float scale, float minimum) {
  return minimum - kByteBase * scale;
}

}  // namespace kvc

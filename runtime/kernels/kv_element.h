// One number of a store's rows: for the references and odd sizes.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "runtime/kernels/kv_rows.h"

namespace kvc {

inline float widen_float16(std::uint16_t bits) {
  const float size =
      std::bit_cast<float>(static_cast<std::uint32_t>(bits & 0x7FFF) << 13) * 0x1p112f;
  const std::uint32_t special = size >= 65536.0f ? 0x7F800000u : 0;  // infinity or no number
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(size) | special |
                              static_cast<std::uint32_t>(bits & 0x8000) << 16);
}

inline float widen_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

template <class T>
T load_as(const void* base, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * std::int64_t{sizeof(T)}, sizeof(T));
  return value;
}

// The byte of a channel's code within a row's run of `group` channels, and its lowest bit.
struct CodePlace {
  std::int64_t byte;
  int shift;
};

inline CodePlace code_place(KvElement element, std::int64_t group, std::int64_t in_group) {
  const int bits = element_bits(element);
  const std::int64_t bytes = group * bits / 8;  // that the run takes
  return {in_group % bytes, static_cast<int>(in_group / bytes) * bits};
}

// The row in its block; with per-channel scales, its group's codes and scales.
struct KvRowPlace {
  const std::uint8_t* codes;  // or numbers
  const std::uint8_t* scales;
};

inline KvRowPlace kv_row_place(const KvRows& rows, std::int64_t width, std::int64_t head_dim,
                               std::int64_t row) {
  const auto* block = static_cast<const std::uint8_t*>(rows.blocks[row / rows.block_rows]);
  const std::int64_t in_block = row % rows.block_rows;
  if (!is_quantised(rows.element)) {
    return {block + in_block * kv_rows_bytes(1, width, head_dim, rows.element, rows.scales), {}};
  }
  const std::int64_t code_bytes = width * element_bits(rows.element) / 8;
  if (rows.scales == KvScales::kPerRow) {
    const std::uint8_t* codes =
        block + in_block * kv_rows_bytes(1, width, head_dim, rows.element, rows.scales);
    return {codes, codes + code_bytes};
  }
  const std::uint8_t* group =
      block + in_block / kQuantisedRows *
                  kv_rows_bytes(kQuantisedRows, width, head_dim, rows.element, rows.scales);
  return {group + in_block % kQuantisedRows * code_bytes, group + kQuantisedRows * code_bytes};
}

inline float kv_element(const KvRows& rows, std::int64_t width, std::int64_t head_dim,
                        std::int64_t row, std::int64_t channel) {
  const KvRowPlace place = kv_row_place(rows, width, head_dim, row);
  switch (rows.element) {
    case KvElement::kFloat32:
      return load_as<float>(place.codes, channel);
    case KvElement::kBFloat16:
      return widen_bfloat16(load_as<std::uint16_t>(place.codes, channel));
    case KvElement::kFloat16:
      return widen_float16(load_as<std::uint16_t>(place.codes, channel));
    default:
      break;
  }
  const std::int64_t group = quantised_group(head_dim), in_group = channel % group;
  const CodePlace in_run = code_place(rows.element, group, in_group);
  const std::int64_t run = channel / group * (group * element_bits(rows.element) / 8);
  const int code = place.codes[run + in_run.byte] >> in_run.shift & largest_code(rows.element);
  const bool per_row = rows.scales == KvScales::kPerRow;
  const std::int64_t index = per_row ? 2 * (channel / group) : channel;
  const float scale = widen_float16(load_as<std::uint16_t>(place.scales, index));
  const float minimum =
      widen_float16(load_as<std::uint16_t>(place.scales, index + (per_row ? 1 : width)));
  return minimum + scale * static_cast<float>(code);
}

}  // namespace kvc

// Memory layout of a KV store's rows, shared by stores and kernels. Does not use torch.
#pragma once

#include <cstdint>
#include <numeric>

namespace kvc {

enum class KvElement { kFloat32, kBFloat16, kFloat16, kInt8, kInt4, kInt2 };

// Bits of a number, or of its code.
inline constexpr int element_bits(KvElement element) {
  constexpr int kBits[] = {32, 16, 16, 8, 4, 2};
  return kBits[static_cast<int>(element)];
}
inline constexpr bool is_quantised(KvElement element) { return element_bits(element) <= 8; }
// The largest code of a quantised element.
inline constexpr int largest_code(KvElement element) { return (1 << element_bits(element)) - 1; }

// The numbers of a quantised store that share a scale.
//   per row      `quantised_group(head_dim)` neighbouring channels of one row (values, latents)
//   per channel  one channel of kQuantisedRows neighbouring rows (keys, before RoPE)
enum class KvScales { kPerRow, kPerChannel };

inline constexpr std::int64_t kQuantisedRows = 32;
// Channels that share a scale: 32, or the largest power of two that divides a head's width.
inline std::int64_t quantised_group(std::int64_t head_dim) {
  return std::gcd(head_dim, std::int64_t{32});
}

// Rows of `width` numbers each in blocks of `block_rows` rows: row i is row i % block_rows of block
// i / block_rows. An integer code c has the value minimum + scale * c, with c in 0 .. 255, 0 .. 15
// or 0 .. 3; scale and minimum are float16.
//   float32, bfloat16, float16   the rows, one after the other
//   int8, per row       every row: `width` codes, then for every group of channels its scale and its
//                       minimum, side by side
//   int8, per channel   every kQuantisedRows rows: the rows' codes, then `width` scales, then
//                       `width` minima; block_rows is a multiple of kQuantisedRows
//   int4                the same with half a byte per code: of a row's every run of g =
//                       quantised_group(head_dim) channels, byte j holds channel j in its low and
//                       channel j + g / 2 in its high half
//   int2                likewise with a quarter of a byte: byte j holds channels j, j + g / 4,
//                       j + g / 2 and j + 3 g / 4 from its lowest bits on
struct KvRows {
  const void* const* blocks = nullptr;
  std::int64_t block_rows = 0;
  std::int64_t num_rows = 0;
  KvElement element = KvElement::kFloat32;
  KvScales scales = KvScales::kPerRow;  // of integers
};

// Bytes of `rows` rows (per channel: a multiple of kQuantisedRows).
inline std::int64_t kv_rows_bytes(std::int64_t rows, std::int64_t width, std::int64_t head_dim,
                                  KvElement element, KvScales scales) {
  const std::int64_t numbers = rows * width * element_bits(element) / 8;
  if (!is_quantised(element)) {
    return numbers;
  }
  const std::int64_t scaled = scales == KvScales::kPerRow
                                  ? rows * (width / quantised_group(head_dim))
                                  : rows / kQuantisedRows * width;
  return numbers + scaled * 4;
}

}  // namespace kvc

// Quantises rows to a store's integer codes, and reads a store's rows as numbers. Does not use torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/kv_rows.h"

namespace kvc {

// `count` rows of `width` numbers (float32, bfloat16 or float16, one row after the other) become
// kv_rows_bytes(count, ...) bytes at `to` in the layout of kv_rows.h; with per-channel scales count
// is a multiple of kQuantisedRows. For the numbers x that share a scale, in float32:
//   minimum = min x rounded down to float16
//   scale   = (max x - minimum) / levels rounded up to float16, levels = 255, 15 or 3
//   code    = (x - minimum) * (1 / scale) rounded to the nearest, ties to even, at most levels;
//             0 where scale is 0
// Both are clamped to float16's finite range, so numbers beyond +-65504 saturate.
struct QuantiseParams {
  const void* from = nullptr;
  KvElement from_element = KvElement::kFloat32;
  std::int64_t count = 0;
  std::int64_t width = 0;
  std::int64_t head_dim = 0;  // int4: a multiple of 2; int2: of 4
  KvElement element = KvElement::kInt8;
  KvScales scales = KvScales::kPerRow;
  void* to = nullptr;
};
void quantise_rows_reference(const QuantiseParams& params);
void quantise_rows(const QuantiseParams& params);

// Rows first .. last - 1, of any element, as contiguous numbers of `to_element` (float32, bfloat16
// or float16): minimum + scale * code in float32, rounded to the nearest, ties to even.
struct DequantiseParams {
  KvRows rows{};
  std::int64_t width = 0;
  std::int64_t head_dim = 0;
  std::int64_t first = 0;
  std::int64_t last = 0;
  KvElement to_element = KvElement::kFloat32;
  void* to = nullptr;  // [last - first, width]
};
void dequantise_rows_reference(const DequantiseParams& params);
void dequantise_rows(const DequantiseParams& params);

}  // namespace kvc

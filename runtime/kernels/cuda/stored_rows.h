// Rows of stores on the GPU: 16-bit ones to integer codes and back, chosen ones, those of fused layers.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// `count` rows of each sequence become int8 or int4 codes of a store, from row first_rows[sequence] on, with the
// bits of quantise_rows() (runtime/kernels/quantise.h). The width is a multiple of 32; with per-channel scales
// count and first rows are too. All rows of `to` that are written lie in blocks that are there.
struct QuantiseRows {
  const void* from = nullptr;  // [num_sequences, count, width], 16-byte aligned
  DeviceElement from_element = DeviceElement::kBFloat16;  // or float16
  DeviceRows to;
  const std::int32_t* first_rows = nullptr;  // [num_sequences], in GPU memory; null: 0
  int num_sequences = 1;
  int count = 0;
};

// Rows first .. first + count - 1 of each sequence, of any element, as contiguous 16-bit numbers, with the bits
// of dequantise_rows(); float8 times the rows' scale.
struct DequantiseRows {
  DeviceRows from;
  std::int32_t first = 0;
  int num_sequences = 1;
  int count = 0;
  void* to = nullptr;  // [num_sequences, count, width], 16-byte aligned
  DeviceElement to_element = DeviceElement::kBFloat16;  // or float16
};

// What stays of a cache moves together: row first_rows[s] + i of `to` becomes row chosen[s, i] of `from`, for i below counts[s]. Both are laid out
// alike, of any element, codes with the scales of their row; no block of `to` is one of `from`.
struct GatherRows {
  DeviceRows from, to;
  const std::int32_t* chosen = nullptr;      // [num_sequences, max_count]
  const std::int32_t* counts = nullptr;      // [num_sequences], in GPU memory
  const std::int32_t* first_rows = nullptr;  // likewise; null: 0
  int num_sequences = 1;
  int max_count = 0;
};

// Keys or values of a fused layer, written out: output[s, row] = first_factor * first row + second_factor * second row, by channels, rounded once. Keys are
// post-RoPE.
struct FuseRows {
  DeviceRows first{}, second{};            // as many rows of one width
  const float* first_factor = nullptr;     // [width], or null: ones
  const float* second_factor = nullptr;    // likewise
  const std::int32_t* num_rows = nullptr;  // [num_sequences] in GPU memory
  int num_sequences = 0;
  int max_rows = 0;  // of a sequence; later rows of the output stay as they are
  DeviceElement element = DeviceElement::kBFloat16;  // of the output: bfloat16 or float16
  void* output = nullptr;  // [num_sequences, max_rows, width], 16-byte aligned
};

}  // namespace kvc

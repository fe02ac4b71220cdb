// Rows of 16-bit numbers to integer codes of a store on the GPU, and back.
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

// Codes of one sequence's rows first .. first + count - 1 become contiguous numbers, with the bits of
// dequantise_rows().
struct DequantiseRows {
  DeviceRows from;
  std::int32_t first = 0;
  int count = 0;
  void* to = nullptr;                                   // [count, width], 16-byte aligned
  DeviceElement to_element = DeviceElement::kBFloat16;  // or float16
};

}  // namespace kvc

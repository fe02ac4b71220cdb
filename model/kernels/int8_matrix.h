// Weights as int8 codes with one float16 scale per group of neighbours in a row. Needs no torch.
#pragma once

#include <cstdint>

#include "model/kernels/weight_product.h"

namespace kvc {

inline constexpr std::int64_t kInt8Group = 32;
inline std::int64_t int8_groups(std::int64_t in) { return (in + kInt8Group - 1) / kInt8Group; }

// A code c, in -127 .. 127, stands for c times its group's scale. Rows are padded to whole groups with
// zero codes.
struct Int8Matrix {
  const std::int8_t* codes = nullptr;     // [out, int8_groups(in) * kInt8Group]
  const std::uint16_t* scales = nullptr;  // [out, int8_groups(in)] float16
  std::int64_t out = 0;
  std::int64_t in = 0;
};

// One row: codes and scales as above. A group's scale is its largest magnitude over 127, rounded to
// float16; codes are the nearest multiples of that. False if a weight is not finite or too large.
bool quantize_int8_row(const float* weights, std::int64_t in, std::int8_t* codes,
                       std::uint16_t* scales);

// Rows first .. last - 1, rounded to `to`. out: [last - first, in]
void dequantize_int8_reference(const Int8Matrix& matrix, std::int64_t first, std::int64_t last,
                               WeightElement to, void* out);
void dequantize_int8(const Int8Matrix& matrix, std::int64_t first, std::int64_t last,
                     WeightElement to, void* out);

}  // namespace kvc

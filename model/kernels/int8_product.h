// x Wᵀ for few rows x and an int8 matrix W, on the CPU. x is rounded to 16-bit integers, which changes it
// by less than a hundredth of what rounding changed W by, and lets integer instructions do the work: two
// instructions per 32 weights instead of six. Needs no torch.
#pragma once

#include <cstdint>

#include "model/kernels/int8_matrix.h"

namespace kvc {

// One row of activations: codes [int8_groups(in) * kInt8Group], zero from `in` on, and scales
// [int8_groups(in)], a group's largest magnitude over 32767.
void quantize_int16_row(const float* x, std::int64_t in, std::int16_t* codes, float* scales);

struct Int8ProductParams {
  Int8Matrix weight;
  const std::int16_t* x = nullptr;  // [num_rows, int8_groups(in) * kInt8Group]
  const float* x_scales = nullptr;  // [num_rows, int8_groups(in)]
  std::int64_t num_rows = 0;        // 1 .. kMaxProductRows
};

// As weight_product.h.
void int8_product_reference(const Int8ProductParams& params, std::int64_t first, std::int64_t last,
                            float* y);
void int8_product(const Int8ProductParams& params, std::int64_t first, std::int64_t last, float* y);

}  // namespace kvc

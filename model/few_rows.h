// Products of few rows with a weight, as in generation: limited by the speed of reading the weight.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// x W^T + b in float32, rounded once to x's type; x [num_rows, in] and W [out, in] of the same dtype.
// False if another product is required: off the CPU, for gradients, other dtypes or layouts, or where
// LibTorch's is faster.
bool can_multiply_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor multiply_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// The same with int8 weights: codes [out, int8_groups(in) * kInt8Group], scales [out, int8_groups(in)].
at::Tensor multiply_few_rows_int8(const at::Tensor& x, const at::Tensor& codes,
                                  const at::Tensor& scales, const at::Tensor& bias);

}  // namespace kvc

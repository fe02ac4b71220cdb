// Products of few rows with a weight, as generation needs them: limited by how fast the weight is read.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// x W^T + b in float32, rounded once to x's type; x [num_rows, in] and W [out, in] of the same type.
// False where that needs another product: off the CPU, for gradients, other types or layouts, or where
// LibTorch's own is faster.
bool can_multiply_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor multiply_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// The same with int8 weights: codes [out, int8_groups(in) * kInt8Group], scales [out, int8_groups(in)].
at::Tensor multiply_few_rows_int8(const at::Tensor& x, const at::Tensor& codes,
                                  const at::Tensor& scales, const at::Tensor& bias);

}  // namespace kvc

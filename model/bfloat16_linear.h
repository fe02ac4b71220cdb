// Products of many rows with a bfloat16 weight, as in prompts, on processors that multiply bfloat16; faster than
// oneDNN.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// x W^T + b summed in float32 and rounded once; x [num_rows, in] and W [out, in], all bfloat16. False if another
// product is required: off the CPU, for gradients, other dtypes or layouts, or where LibTorch's is faster.
bool can_multiply_bfloat16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// A row of the result depends neither on the other rows nor on the number of threads.
at::Tensor multiply_bfloat16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// The same with int8 weights (Linear), rounded to bfloat16 on the way; bias of any type.
bool can_multiply_bfloat16_int8(const at::Tensor& x);
at::Tensor multiply_bfloat16_int8(const at::Tensor& x, const at::Tensor& codes,
                                  const at::Tensor& scales, const at::Tensor& bias);

}  // namespace kvc

// x W^T + b in float32 on the CPU through oneDNN, whose kernels use vector instructions that the BLAS
// inside LibTorch leaves idle on some processors (measured: 2.2 times its speed).
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// The same as at::linear, to float32 rounding, and differentiable with respect to x. Whatever oneDNN does
// not cover or does not speed up (other types, few rows, a weight that wants a gradient) is at::linear.
// x: [num_tokens, in], weight: [out, in], bias: [out] or undefined.
at::Tensor float_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace kvc

// x W^T + b on the CPU: own products in the types and sizes where they are fastest, and in float32 oneDNN, whose
// kernels use vector instructions that the BLAS inside LibTorch leaves idle on some processors (measured: 2.2 times its
// speed).
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// The same as at::linear, to rounding of sums in float32, and differentiable with respect to x. Whatever neither covers
// nor speeds up (other types, a weight that wants a gradient) is at::linear.
// x: [num_tokens, in], weight: [out, in], bias: [out] or undefined.
at::Tensor float_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace kvc

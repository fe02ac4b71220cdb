// x W^T + b on the CPU: own products for dtypes and sizes where they are fastest, and oneDNN in float32, which uses
// vector instructions that LibTorch's BLAS leaves idle on some processors (measured: 2.2 times its speed).
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// Equals at::linear up to rounding of float32 sums, and is differentiable with respect to x. Everything else (other
// dtypes, a weight with a gradient) calls at::linear. x: [num_tokens, in], weight: [out, in], bias: [out] or undefined.
at::Tensor float_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace kvc

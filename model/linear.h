// A projection: y = x W^T + b.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace kvc {

// Dtype of weights: floats, or int8 with scales (int8_linear.h).
enum class WeightType { kFloat, kInt8 };
WeightType parse_weight_type(const std::string& name);  // "int8"; empty: kFloat

struct Linear {
  at::Tensor weight;    // [out, in]; int8: codes [out, in rounded up to whole groups]
  at::Tensor bias;      // [out], or undefined
  at::Tensor scales{};  // int8: [out, groups of `in`] float16; otherwise undefined

  at::Tensor operator()(const at::Tensor& x) const;
  // Some of the outputs.
  Linear rows(std::int64_t first, std::int64_t count) const;
  // One of several stacked projections without biases: weight [count, out, in].
  Linear stacked(std::int64_t index) const;
};

// x W^T + b on the CPU: own products for dtypes and sizes where they are fastest, and oneDNN in float32, which uses
// vector instructions that LibTorch's BLAS leaves idle on some processors (measured: 2.2 times its speed). Many rows of
// 16-bit numbers, which LibTorch multiplies without vector instructions on some, become float32 on the way.
// Equals at::linear up to rounding of float32 sums, and is differentiable with respect to x. Everything else (other
// dtypes, a weight with a gradient) calls at::linear. x: [num_tokens, in], weight: [out, in], bias: [out] or undefined.
at::Tensor float_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace kvc

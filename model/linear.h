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
  // One of several stacked projections without biases: weight [count, out, in].
  Linear stacked(std::int64_t index) const;
};

}  // namespace kvc

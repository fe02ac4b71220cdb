// The normalisations of a decoder layer.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// RMS norms, or layer norms if there is a bias. Without a weight: returns x.
struct Norm {
  at::Tensor weight;  // [size]; always float32 for kRmsWide and kRmsPlusOne (1 + w)
  at::Tensor bias;    // [size], or undefined
  double eps = 0;

  bool defined() const { return weight.defined(); }
  at::Tensor operator()(const at::Tensor& x) const;  // over the last axis
  // x: [num_tokens, num_heads, head_dim], over each head, or all heads of a token if the weight has
  // that many channels.
  at::Tensor over_heads(const at::Tensor& x) const;
};

// x / rms(x) * weight over the last axis; the mean square is float32, cast back before the product, or
// after it if only the weight is float32.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace kvc

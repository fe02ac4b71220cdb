// A projection: y = x W^T + b.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

struct Linear {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined

  at::Tensor operator()(const at::Tensor& x) const;
};

}  // namespace kvc

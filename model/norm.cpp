#include "model/norm.h"

#include "model/fused_ops.h"

namespace kvc {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const bool wide_weight = weight.scalar_type() != x.scalar_type();
  if (can_fuse(x) && can_fuse(weight) && (!wide_weight || weight.scalar_type() == at::kFloat)) {
    return fused_rms_norm(x, weight, eps);
  }
  if (x.is_cuda() && !wide_weight && !wants_gradient(x) && !wants_gradient(weight)) {
    return at::rms_norm(x, weight.sizes(), weight, eps);  // one kernel, which rounds once
  }
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed = wide * wide.square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  return wide_weight ? (weight * normed).to(x.scalar_type()) : weight * normed.to(x.scalar_type());
}

at::Tensor Norm::operator()(const at::Tensor& x) const {
  if (!weight.defined()) {
    return x;
  }
  return bias.defined() ? at::layer_norm(x, weight.sizes(), weight, bias, eps)
                        : rms_norm(x, weight, eps);
}

at::Tensor Norm::over_heads(const at::Tensor& x) const {
  if (!weight.defined() || weight.size(0) == x.size(-1)) {
    return (*this)(x);
  }
  return (*this)(x.flatten(1)).view_as(x);
}

}  // namespace kvc

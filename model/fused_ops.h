// Row-wise operators in one pass over memory, for inference on the CPU. They round step by step like
// the same compositions of at:: operators (rms_norm, RopeTable::rotate), which handle everything else.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// False if a gradient is required, off the CPU, or for dtypes and layouts that the kernels do not
// take.
bool can_fuse(const at::Tensor& x);
bool wants_gradient(const at::Tensor& x);

// x: [..., size], weight: [size] of x's type, or float32: then the product is rounded once, at the end.
at::Tensor fused_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// x: [num_tokens, num_heads, head_dim]; cos, sin: [num_tokens, 1, rotary_dim / 2] contiguous, of x's type.
// Channels from rotary_dim on are copied.
at::Tensor fused_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// silu(gate) * up, for two matrices of the same shape. The first function is false as can_fuse, and where LibTorch's
// operators are as fast.
bool can_fuse_gated_silu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor fused_gated_silu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace kvc

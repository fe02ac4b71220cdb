// Row-wise operators in one pass over memory, for inference on the CPU. Same rounding, step by step, as
// their compositions of at:: operators (rms_norm, RopeTable::rotate), which remain for everything else.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// False where a gradient is wanted, off the CPU, or for other types and layouts than the kernels take.
bool can_fuse(const at::Tensor& x);
bool wants_gradient(const at::Tensor& x);

// x: [..., size], weight: [size] of x's type, or float32: then the product is rounded once, at the end.
at::Tensor fused_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// x: [num_tokens, num_heads, head_dim]; cos, sin: [num_tokens, 1, rotary_dim / 2] contiguous, of x's type.
// Channels from rotary_dim on are copied.
at::Tensor fused_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// silu(gate) * up, for two matrices of the same shape. The first is false as can_fuse, and where LibTorch's operators are
// as fast.
bool can_fuse_gated_silu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor fused_gated_silu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace kvc

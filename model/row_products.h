// Products of rows with a weight that beat LibTorch's where they apply; what it takes is asked first.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// Few rows, as generation needs them: limited by how fast the weight is read.
// x W^T + b in float32, rounded once to x's type; x [num_rows, in] and W [out, in] of the same dtype.
// False if another product is required: off the CPU, for gradients, other dtypes or layouts, or where
// LibTorch's is faster.
bool can_multiply_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor multiply_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// The same with int8 weights: codes [out, int8_groups(in) * kInt8Group], scales [out, int8_groups(in)].
at::Tensor multiply_few_rows_int8(const at::Tensor& x, const at::Tensor& codes,
                                  const at::Tensor& scales, const at::Tensor& bias);

// Many rows in bfloat16, as prompts need them, on processors that multiply it: nearer to what the processor can do
// than oneDNN is.
// x W^T + b summed in float32 and rounded once; x [num_rows, in] and W [out, in], all bfloat16. False if another
// product is required: off the CPU, for gradients, other dtypes or layouts, or where LibTorch's is faster.
bool can_multiply_bfloat16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// A row of the result depends neither on the other rows nor on the number of threads.
at::Tensor multiply_bfloat16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// Whether LibTorch multiplies many rows of the type with vector instructions of the processor. Where it does not, as
// bfloat16 without AVX-512 and float16 without its AVX-512 instructions, float32 is several times as fast.
bool has_fast_products(at::ScalarType type);
// Where it does not: most bytes that float_linear takes beside x [num_rows, in], W [out, in] and their product.
std::int64_t widened_product_bytes(std::int64_t num_rows, std::int64_t in, std::int64_t out);

// The same with int8 weights (Linear), rounded to bfloat16 on the way; bias of any type.
bool can_multiply_bfloat16_int8(const at::Tensor& x);
at::Tensor multiply_bfloat16_int8(const at::Tensor& x, const at::Tensor& codes,
                                  const at::Tensor& scales, const at::Tensor& bias);

}  // namespace kvc

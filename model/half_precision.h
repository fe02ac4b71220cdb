// Which matrices float16 holds.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// Does rounding leave at most a millionth of squared error in every row and every column of a matrix?
bool half_holds(const at::Tensor& matrix);
// In float16 where that is so, else in float32.
at::Tensor to_half_or_float(const at::Tensor& matrix);

}  // namespace kvc

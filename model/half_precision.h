// Which matrices float16 represents well enough.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// Does rounding leave at most a millionth of squared error in every row and every column of a matrix?
bool half_holds(const at::Tensor& matrix);
// float16 if so, else float32.
at::Tensor to_half_or_float(const at::Tensor& matrix);

}  // namespace kvc

// Gram matrices at little over half the work of a full product.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// The lower triangle of m^T m (the rest is undefined). m [rows, columns]; a little over half the
// work of the full product.
at::Tensor lower_gram(const at::Tensor& m);

}  // namespace kvc

// The GPU's part of symmetric_eigen; only in builds with KVC_CUDA.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// Ascending eigenvalues [n]; `matrix` [n, n], of which the lower triangle is read, becomes the
// eigenvectors, one per row.
at::Tensor syevd_cuda(at::Tensor& matrix);
// Error naming what is missing unless a GPU can be used.
void check_cuda_usable(int index);

}  // namespace kvc

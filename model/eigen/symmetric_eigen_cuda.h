// The GPU's part of symmetric_eigen; only in builds with KVC_CUDA.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// Ascending eigenvalues [n]; `matrix` [n, n] float64, of which the lower triangle is read, becomes the
// eigenvectors, one per row. cuSOLVER's Xsyevd, on the current stream, for which it waits.
at::Tensor syevd_cuda(at::Tensor& matrix);

}  // namespace kvc

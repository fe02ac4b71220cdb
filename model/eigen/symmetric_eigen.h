// Symmetric matrices: Gram matrices and their eigenpairs. A decomposition is the library's, in float64, where the
// matrix lies: LAPACK's dsyevd on the CPU, cuSOLVER's Xsyevd on a GPU. Eigenvalues of the two agree to a few units
// of rounding of the largest, and so do projectors on eigenspaces that are apart; signs of eigenvectors do not.
// Either gives the same bits every time.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace kvc {

struct SymmetricEigen {
  at::Tensor values;   // [n] float64, descending
  at::Tensor vectors;  // [num_vectors, n] float64, row i belongs to values[i]; any strides
};

// Only the lower triangle of `matrix` [n, n] float64 is read. The tensor is consumed: its contents
// are undefined afterwards. 1 <= num_vectors <= n. Error where an element is not finite.
SymmetricEigen symmetric_eigen(at::Tensor matrix, std::int64_t num_vectors);

// The lower triangle of m^T m (the rest is undefined). m [rows, columns]; a little over half the
// work of the full product.
at::Tensor lower_gram(const at::Tensor& m);

#ifdef KVC_CUDA
// The GPU's part of symmetric_eigen: ascending eigenvalues [n]; `matrix` becomes the eigenvectors, one per row.
// Works on the current stream, for which it waits.
at::Tensor syevd_cuda(at::Tensor& matrix);
#endif

}  // namespace kvc

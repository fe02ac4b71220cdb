// Eigendecomposition of a symmetric matrix in float64, where it lies: on the CPU in two stages
// (two_stage_eigen.h), or for small ones LAPACK's dsyevd; on a GPU cuSOLVER's Xsyevd. Eigenvalues of the two
// agree to a few units of rounding of the largest, and so do projectors on eigenspaces that are apart;
// signs of eigenvectors do not. Either gives the same bits every time.
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

}  // namespace kvc

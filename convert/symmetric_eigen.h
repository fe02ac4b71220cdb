// Eigendecomposition of a symmetric matrix in float64, on the device that holds it: on the CPU our two
// stages (convert/eigen) or, for small ones, LAPACK's dsyevd; on a GPU cuSOLVER's Xsyevd.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace kvc {

struct SymmetricEigen {
  at::Tensor values;   // [n] float64, descending
  at::Tensor vectors;  // [num_vectors, n] float64, row i belongs to values[i]; any strides
};

// Only the lower triangle of `matrix` [n, n] float64 is read. The tensor is consumed: its contents
// are undefined afterwards. 1 <= num_vectors <= n. Error where an element is not finite.
SymmetricEigen symmetric_eigen(at::Tensor matrix, std::int64_t num_vectors);

// The device of a --device value: "cpu", "cuda" or "cuda:N". Error where this build or machine has
// none.
at::Device factor_device(const std::string& name);

}  // namespace kvc

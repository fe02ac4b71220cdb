// Eigendecomposition of a symmetric matrix in float64, on the device that holds it: LAPACK's dsyevd
// on the CPU, cuSOLVER's Xsyevd on a GPU.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace kvc {

struct SymmetricEigen {
  at::Tensor values;   // [n] float64, descending
  at::Tensor vectors;  // [n, n] float64, row i belongs to values[i]
};

// Only the lower triangle of `matrix` [n, n] float64 is read. The tensor is consumed: its contents
// are undefined afterwards.
SymmetricEigen symmetric_eigen(at::Tensor matrix);

// The device of a --device value: "cpu", "cuda" or "cuda:N". Error where this build or machine has
// none.
at::Device factor_device(const std::string& name);

}  // namespace kvc

// Eigendecomposition of a symmetric matrix in float64, on the device that holds it: on the CPU
// model/eigen's; on a GPU cuSOLVER's Xsyevd.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "model/eigen/symmetric_eigen.h"

namespace kvc {

// As symmetric_eigen_cpu.
SymmetricEigen symmetric_eigen(at::Tensor matrix, std::int64_t num_vectors);

// The device of a --device value: "cpu", "cuda" or "cuda:N". Error where this build or machine has
// none.
at::Device factor_device(const std::string& name);

}  // namespace kvc

// Eigenvalues and leading eigenvectors of a symmetric tridiagonal matrix, by divide and conquer.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/eigen/band_tridiagonal.h"

namespace kvc {

inline constexpr std::int64_t kRowPadding = 8;  // doubles that keep rows apart in the cache's sets

struct TridiagonalEigen {
  std::vector<double> values;  // [n], descending
  at::Tensor vectors;          // [n, num_vectors] float64, eigenvectors as columns in any order
  std::vector<std::int64_t> columns;  // [num_vectors], the column of each leading value
};

// 1 <= num_vectors <= n. Finite elements.
TridiagonalEigen tridiagonal_eigen(const Tridiagonal& matrix, std::int64_t num_vectors);

}  // namespace kvc

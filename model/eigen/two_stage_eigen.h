// Eigenvalues and leading eigenvectors of a full symmetric matrix in two stages, to band form and to
// tridiagonal form, so that nearly all work is matrix products.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>

namespace kvc {

// The largest |element| of the lower triangle of `matrix` [n, n] float64; not finite where one is not.
double largest_magnitude(const at::Tensor& matrix);

// Values [n] descending and vectors [n, num_vectors], columns, of the symmetric matrix whose lower
// triangle is that of `matrix` [n, n]; float64 on the CPU. `largest` is its largest_magnitude, finite.
// 1 <= num_vectors <= n. At most about four matrices of that size are held. The same bits for the
// same number of threads.
std::pair<at::Tensor, at::Tensor> two_stage_eigen(at::Tensor matrix, double largest,
                                                  std::int64_t num_vectors);

}  // namespace kvc

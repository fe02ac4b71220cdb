// Principal directions under a metric.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace kvc {

// Rows and columns `index` of a square matrix.
at::Tensor submatrix(const at::Tensor& matrix, const at::Tensor& index);

// Adds a hundredth of its mean to the diagonal of each `part_width` of channels: one layer's keys, or its
// values. A part with a zero metric gets the mean of the whole, so it stays defined.
at::Tensor damped_cache_metric(at::Tensor metric, std::int64_t part_width);

// Principal directions of a covariance under a metric: with M = R R^T and R^T C R = U diag(lambda) U^T,
//   E = U_r^T R^T,   F = R^-T U_r,   y ~ F E (y - mean) + mean.
// lambda_i is the squared error, in the metric, of leaving coefficient i out.

struct PrincipalBasis {
  at::Tensor eigenvalues;  // [n] float64, of all coefficients: descending, none below zero
  at::Tensor encoder;      // [rank, n] float64, E
  at::Tensor decoder;      // [n, rank] float64, F
};

// `covariance` [n, n] float64. `metric` [n, n] float64, positive definite, or undefined: the identity, and
// then F = E^T. 1 <= rank <= n.
PrincipalBasis principal_basis(const at::Tensor& covariance, const at::Tensor& metric,
                               std::int64_t rank, at::Device device = at::kCPU);

}  // namespace kvc

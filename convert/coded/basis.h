// The coordinates that a block's keys and values are coded in.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace kvc {

// z = encoder (y - mean) has uncorrelated coefficients, and |z|^2 is the error that the metric sees.
struct CodedBasis {
  at::Tensor encoder;    // [n, n] float64; rows by falling variance of their coefficient
  at::Tensor decoder;    // [n, n] float64, the encoder's inverse
  at::Tensor variances;  // [n] float64, falling, not negative: what dropping a coefficient costs
};

// For covariance C and metric M = R R^T (Cholesky): the eigenvectors U of R^T C R give encoder U^T R^T and
// decoder R^-T U. Both [n, n] symmetric float64 on one device; M positive definite.
CodedBasis coded_basis(const at::Tensor& covariance, const at::Tensor& metric);

// A hundredth of its mean is added to the diagonal of each `part_width` of channels: one layer's keys, or its
// values. A part that the metric does not see at all gets that of the whole, so that it stays defined.
at::Tensor damped_cache_metric(at::Tensor metric, std::int64_t part_width);

}  // namespace kvc

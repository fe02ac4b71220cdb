// Leading eigenpairs of a positive semidefinite matrix by Chebyshev-filtered block iteration with Rayleigh-Ritz: a fraction of
// a full decomposition's work where few are wanted.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace kvc {

struct SubspaceOptions {
  std::int64_t oversampling = 32;  // directions carried beyond those that are wanted
  int degree = 4;                  // of the polynomial between two Rayleigh-Ritz steps
  int most_products = 60;          // with the matrix
  // Stops when the squared error of projecting on the subspace is, by the residuals, at most so far above
  // the least, relative to it.
  double excess = 1e-3;
};

struct LeadingSubspace {
  at::Tensor values;   // [rank] float64, descending; on the matrix's device
  at::Tensor vectors;  // [rank, n] float64, orthonormal rows; there, too
  int products = 0;    // with the matrix; 0: all eigenpairs were computed
};

// `matrix` [n, n] float64, symmetric, both triangles, on any device. 1 <= rank <= n. `start` [k, n]: directions to begin
// with, e.g. those of an earlier text; undefined: signs from a fixed sequence. The residuals r_i of the
// Ritz pairs bound what the subspace misses by sum ||r_i||^2 / (theta_i - theta_last). Error where an element
// is not finite.
LeadingSubspace leading_subspace(const at::Tensor& matrix, std::int64_t rank,
                                 const at::Tensor& start = {}, const SubspaceOptions& options = {});

}  // namespace kvc

// The factorisation of one group of projections: W = B A, truncated where it costs least in the
// metric of the inputs, from the eigendecomposition of a Gram matrix in float64.
//
// With C = R R^T the metric (C = I: plain) and M = W R = U diag(s) E^T:
//   B = U_r diag(s)^1/2 = M E_r diag(s)^-1/2,   A = diag(s)^-1 B^T W,   B^T B = diag(s).
// No inverse of R is formed. E comes from M^T M, or U from M M^T if that is smaller. Squaring is
// harmless: relevant singular values are far above 1e-8 of the largest.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace kvc {

struct GroupFactorization {
  at::Tensor latent_proj;       // [rank, hidden_size] float64, A
  at::Tensor reconstruct_proj;  // [rows, rank] float64, B
  at::Tensor singular_values;   // [rank] float64, descending, s
  double energy_kept = 0;       // sum of kept eigenvalues / sum of all
  double optimum_error = 0;     // bounds |squared error - dropped eigenvalues| / sum of all

  std::int64_t rank() const { return singular_values.size(0); }
};

// Inputs of a group's eigendecomposition, on its device.
struct GroupProblem {
  at::Tensor stacked_proj;  // W
  at::Tensor root;          // R, or undefined
  at::Tensor m;             // M = W R
  at::Tensor gram;          // M^T M or M M^T, lower triangle
  bool wide = false;        // the latter
};
// `stacked_proj` W [rows, hidden_size] float64; `metric` C [hidden_size, hidden_size] float64,
// positive definite, or undefined for the identity. The resulting rank is smaller than `rank` if
// eigenvalues end (below 1e-12 of the largest). Results are on the CPU, the work is done on
// `device`. The first two functions are the halves of factorize_group.
GroupProblem group_problem(const at::Tensor& stacked_proj, const at::Tensor& metric,
                           at::Device device);
GroupFactorization solve_group(GroupProblem problem, std::int64_t rank);
GroupFactorization factorize_group(const at::Tensor& stacked_proj, const at::Tensor& metric,
                                   std::int64_t rank, at::Device device = at::kCPU);

// B from the covariance of the stacked outputs, E[y y^T] [rows, rows] float64 (consumed): no linear
// encoder has a better shared latent of this rank. A as above.
GroupFactorization factorize_outputs(const at::Tensor& stacked_proj, at::Tensor covariance,
                                     std::int64_t rank, at::Device device = at::kCPU);

// The metric of a group from summed second moments of its layers' inputs, each divided by its token
// count: damped by 0.01 of the mean diagonal, so it is always positive definite.
at::Tensor damped_metric(at::Tensor second_moment);

}  // namespace kvc

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

// What the eigendecomposition of a group needs, on its device.
struct GroupProblem {
  at::Tensor stacked_proj;  // W
  at::Tensor root;          // R, or undefined
  at::Tensor m;             // M = W R
  at::Tensor gram;          // M^T M or M M^T, lower triangle
  bool wide = false;        // the latter
};
// `stacked_proj` W [rows, hidden_size] float64; `metric` C [hidden_size, hidden_size] float64,
// positive definite, or undefined for the identity. The rank found is smaller than `rank` where the
// eigenvalues end (below 1e-12 of the largest). Results are on the CPU, the work is done on
// `device`.
GroupFactorization factorize_group(const at::Tensor& stacked_proj, const at::Tensor& metric,
                                   std::int64_t rank, at::Device device = at::kCPU);
// Its two halves: products, then the eigendecomposition.
GroupProblem group_problem(const at::Tensor& stacked_proj, const at::Tensor& metric,
                           at::Device device);
GroupFactorization solve_group(GroupProblem problem, std::int64_t rank);

// B from the covariance of the stacked outputs, E[y y^T] [rows, rows] float64 (consumed): no linear
// encoder has a better shared latent of this rank. A as above.
GroupFactorization factorize_outputs(const at::Tensor& stacked_proj, at::Tensor covariance,
                                     std::int64_t rank, at::Device device = at::kCPU);

// The metric of a group from summed second moments of its layers' inputs, each divided by its token
// count: damped by 0.01 of the mean diagonal, so it is always positive definite.
at::Tensor damped_metric(at::Tensor second_moment);

// The proof that a factorisation is the best there is: M's energy is what its eigenvalues sum to, each
// vector captures its eigenvalue's share, and the vectors are orthonormal. An upper bound of |squared error - dropped eigenvalues| / sum of all, for the projection of M on
// vectors E:
//   (| ||M||^2 - sum_i l_i | + sum_j | ||M e_j||^2 - l_j |) / sum_i l_i + max |E E^T - I|.
// `energy` is ||M||^2, `captured` [rank] float64 the measured ||M e_j||^2, `values` [n] float64 all
// eigenvalues l of M^T M, descending, `vectors` E [rank, n] float64.
double optimum_error(double energy, const at::Tensor& captured, const at::Tensor& values,
                     const at::Tensor& vectors);

}  // namespace kvc

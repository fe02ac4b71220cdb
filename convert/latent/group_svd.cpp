#include "convert/latent/group_svd.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/eigen/symmetric_eigen.h"

namespace kvc {
namespace {

constexpr double kEffectiveRank = 1e-12;  // relative to the largest eigenvalue
constexpr double kDamping = 0.01;         // relative to the mean diagonal

// The leading eigenpairs and what they leave.
struct Leading {
  at::Tensor values;    // [rank]
  at::Tensor vectors;   // [rank, n]
  at::Tensor spectrum;  // [n], all eigenvalues, none below zero
  double total = 0;     // their sum
  double dropped = 0;

  // The defect of M's projection on the vectors, from the measured ||M||^2 and ||M e_j||^2.
  double error(double energy, const at::Tensor& captured) const {
    return optimum_error(energy, captured, spectrum, vectors);
  }
};

Leading leading_eigenpairs(at::Tensor matrix, std::int64_t rank) {
  const std::int64_t num_vectors = std::min(rank, matrix.size(0));
  const SymmetricEigen eigen = symmetric_eigen(std::move(matrix), num_vectors);
  const at::Tensor values = eigen.values.cpu().clamp_min(0);
  const double* value = values.const_data_ptr<double>();
  KVC_CHECK(std::isfinite(value[0]) && value[0] > 0,
            "the projections of a group are all zero or not finite; the checkpoint holds no "
            "usable weights");
  std::int64_t kept = 0;
  while (kept < num_vectors && value[kept] >= kEffectiveRank * value[0]) {
    ++kept;
  }
  Leading leading;
  leading.values = values.narrow(0, 0, kept).clone();
  leading.vectors = eigen.vectors.narrow(0, 0, kept);
  leading.spectrum = values;
  leading.total = values.sum().item<double>();
  leading.dropped = values.narrow(0, kept, values.size(0) - kept).sum().item<double>();
  return leading;
}

double energy(const at::Tensor& m) { return at::linalg_vector_norm(m).square().item<double>(); }

// Squared norms of the columns.
at::Tensor column_energies(const at::Tensor& m) {
  constexpr std::int64_t kRows[] = {0};
  return at::linalg_vector_norm(m, 2, at::IntArrayRef(kRows)).square();
}

// A from B: diag(s)^-1 B^T W.
void set_latent_proj(GroupFactorization& factors, const at::Tensor& stacked_proj) {
  const at::Tensor scale = factors.singular_values.to(stacked_proj.device()).unsqueeze(1);
  factors.latent_proj = at::mm(factors.reconstruct_proj.t(), stacked_proj).div_(scale);
}

void set_spectrum(GroupFactorization& factors, const Leading& leading) {
  factors.singular_values = leading.values.sqrt();
  factors.energy_kept = 1 - leading.dropped / leading.total;
}

void to_cpu(GroupFactorization& factors) {
  factors.latent_proj = factors.latent_proj.cpu();
  factors.reconstruct_proj = factors.reconstruct_proj.cpu().contiguous();
}

void check_input(const at::Tensor& stacked_proj, std::int64_t rank) {
  KVC_CHECK(stacked_proj.dim() == 2 && stacked_proj.scalar_type() == at::kDouble && rank >= 1,
            "factorize_group: expected a float64 matrix and a positive rank");
}

// max |E E^T - I|
double orthogonality_defect(const at::Tensor& vectors) {
  at::Tensor gram = lower_gram(vectors.t());
  gram.diagonal().sub_(1);
  return gram.tril_().abs_().max().item<double>();
}

}  // namespace

at::Tensor damped_metric(at::Tensor second_moment) {
  at::Tensor diagonal = second_moment.diagonal();
  const double mean = diagonal.mean().item<double>();
  KVC_CHECK(std::isfinite(mean) && mean > 0,
            "the calibration's projection inputs are all zero or not finite");
  diagonal.add_(kDamping * mean);
  return second_moment;
}

GroupProblem group_problem(const at::Tensor& stacked_proj, const at::Tensor& metric,
                           at::Device device) {
  GroupProblem problem;
  problem.stacked_proj = stacked_proj.to(device);
  // Any root R of C gives the same B. Damping bounds C's condition, so its Cholesky factor exists.
  if (metric.defined()) {
    problem.root = at::linalg_cholesky(metric.to(device));
  }
  problem.m =
      problem.root.defined() ? at::mm(problem.stacked_proj, problem.root) : problem.stacked_proj;
  problem.wide = problem.m.size(0) < problem.m.size(1);
  problem.gram = lower_gram(problem.wide ? problem.m.t() : problem.m);
  return problem;
}

GroupFactorization solve_group(GroupProblem problem, std::int64_t rank) {
  const at::Tensor &w = problem.stacked_proj, &m = problem.m;
  const Leading leading = leading_eigenpairs(std::move(problem.gram), rank);
  const at::Tensor quarter = leading.values.pow(0.25).to(m.device());  // s^1/2

  GroupFactorization factors;
  set_spectrum(factors, leading);
  at::Tensor captured;  // ||M e_j||^2 or ||M^T u_j||^2
  if (problem.wide) {
    captured = column_energies(at::mm(m.t(), leading.vectors.t()));
    factors.reconstruct_proj = leading.vectors.t().mul(quarter);
  } else {
    factors.reconstruct_proj = at::mm(m, leading.vectors.t());
    captured = column_energies(factors.reconstruct_proj);
    factors.reconstruct_proj.div_(quarter);
  }
  factors.optimum_error = leading.error(energy(m), captured);
  if (problem.wide || problem.root.defined()) {
    set_latent_proj(factors, w);
  } else {  // diag(s)^-1 B^T W = diag(s)^1/2 E_r^T
    factors.latent_proj = leading.vectors.mul(quarter.unsqueeze(1)).contiguous();
  }
  to_cpu(factors);
  return factors;
}

GroupFactorization factorize_group(const at::Tensor& stacked_proj, const at::Tensor& metric,
                                   std::int64_t rank, at::Device device) {
  check_input(stacked_proj, rank);
  return solve_group(group_problem(stacked_proj, metric, device), rank);
}

GroupFactorization factorize_outputs(const at::Tensor& stacked_proj, at::Tensor covariance,
                                     std::int64_t rank, at::Device device) {
  check_input(stacked_proj, rank);
  const at::Tensor w = stacked_proj.to(device);
  const at::Tensor moment = covariance.to(device);
  covariance.reset();
  const Leading leading = leading_eigenpairs(moment.clone(), rank);

  GroupFactorization factors;
  factors.reconstruct_proj = leading.vectors.t().mul(leading.values.pow(0.25).to(device));
  set_spectrum(factors, leading);
  set_latent_proj(factors, w);
  // u_j^T E[y y^T] u_j of trace(E[y y^T])
  const at::Tensor captured = at::mm(leading.vectors, moment).mul_(leading.vectors).sum(1);
  factors.optimum_error = leading.error(moment.diagonal().sum().item<double>(), captured);
  to_cpu(factors);
  return factors;
}

double optimum_error(double energy, const at::Tensor& captured, const at::Tensor& values,
                     const at::Tensor& vectors) {
  const double total = values.sum().item<double>();
  const double misplaced =
      (captured.cpu() - values.cpu().narrow(0, 0, captured.size(0))).abs().sum().item<double>();
  return (std::abs(energy - total) + misplaced) / total + orthogonality_defect(vectors);
}

}  // namespace kvc

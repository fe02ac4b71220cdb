#include "convert/group_svd.h"

#include <algorithm>
#include <cmath>

#include "convert/symmetric_eigen.h"
#include "core/error.h"

namespace kvc {
namespace {

constexpr double kEffectiveRank = 1e-12;  // relative to the largest eigenvalue
constexpr double kDamping = 0.01;         // relative to the mean diagonal
constexpr std::int64_t kGramBlock = 512;

// The leading eigenpairs and what they leave.
struct Leading {
  at::Tensor values;   // [rank]
  at::Tensor vectors;  // [rank, n]
  double total = 0;    // sum of all eigenvalues, none below zero
  double dropped = 0;
};

Leading leading_eigenpairs(at::Tensor matrix, std::int64_t rank) {
  const SymmetricEigen eigen = symmetric_eigen(std::move(matrix));
  const at::Tensor values = eigen.values.cpu().clamp_min(0);
  const double* value = values.const_data_ptr<double>();
  KVC_CHECK(std::isfinite(value[0]) && value[0] > 0,
            "the projections of a group are all zero or not finite; the checkpoint holds no "
            "usable weights");
  std::int64_t kept = 0;
  while (kept < std::min(rank, values.size(0)) && value[kept] >= kEffectiveRank * value[0]) {
    ++kept;
  }
  Leading leading;
  leading.values = values.narrow(0, 0, kept).clone();
  leading.vectors = eigen.vectors.narrow(0, 0, kept).clone();
  leading.total = values.sum().item<double>();
  leading.dropped = values.narrow(0, kept, values.size(0) - kept).sum().item<double>();
  return leading;
}

// ||M - B (A R)||_F^2. Products in float32: the error this leaves is far below 1e-6 of ||M||^2.
double squared_error(const at::Tensor& m, const GroupFactors& factors, const at::Tensor& root) {
  const at::Tensor latent = factors.latent_proj.to(at::kFloat);
  const at::Tensor rooted = root.defined() ? at::mm(latent, root.to(at::kFloat)) : latent;
  const at::Tensor residual =
      at::addmm(m.to(at::kFloat), factors.reconstruct_proj.to(at::kFloat), rooted, 1, -1);
  return residual.square_().sum(at::kDouble).item<double>();
}

// A from B: diag(s)^-1 B^T W.
void set_latent_proj(GroupFactors& factors, const at::Tensor& stacked_proj) {
  const at::Tensor scale = factors.singular_values.to(stacked_proj.device()).unsqueeze(1);
  factors.latent_proj = at::mm(factors.reconstruct_proj.t(), stacked_proj).div_(scale);
}

void set_spectrum(GroupFactors& factors, const Leading& leading) {
  factors.singular_values = leading.values.sqrt();
  factors.energy_kept = 1 - leading.dropped / leading.total;
}

void to_cpu(GroupFactors& factors) {
  factors.latent_proj = factors.latent_proj.cpu();
  factors.reconstruct_proj = factors.reconstruct_proj.cpu().contiguous();
}

void check_input(const at::Tensor& stacked_proj, std::int64_t rank) {
  KVC_CHECK(stacked_proj.dim() == 2 && stacked_proj.scalar_type() == at::kDouble && rank >= 1,
            "factorize_group: expected a float64 matrix and a positive rank");
}

}  // namespace

at::Tensor lower_gram(const at::Tensor& m) {
  const std::int64_t n = m.size(1);
  at::Tensor gram = at::empty({n, n}, m.options());
  for (std::int64_t begin = 0; begin < n; begin += kGramBlock) {
    const std::int64_t width = std::min(kGramBlock, n - begin);
    at::Tensor block = gram.narrow(0, begin, n - begin).narrow(1, begin, width);
    block.copy_(at::mm(m.narrow(1, begin, n - begin).t(), m.narrow(1, begin, width)));
  }
  return gram;
}

at::Tensor damped_metric(at::Tensor second_moment) {
  at::Tensor diagonal = second_moment.diagonal();
  const double mean = diagonal.mean().item<double>();
  KVC_CHECK(std::isfinite(mean) && mean > 0,
            "the calibration's projection inputs are all zero or not finite");
  diagonal.add_(kDamping * mean);
  return second_moment;
}

GroupFactors factorize_group(const at::Tensor& stacked_proj, const at::Tensor& metric,
                             std::int64_t rank, at::Device device) {
  check_input(stacked_proj, rank);
  const at::Tensor w = stacked_proj.to(device);
  // Any root R of C gives the same B. Damping bounds C's condition, so its Cholesky factor exists.
  const at::Tensor root = metric.defined() ? at::linalg_cholesky(metric.to(device)) : at::Tensor();
  const at::Tensor m = root.defined() ? at::mm(w, root) : w;
  const bool wide = m.size(0) < m.size(1);
  const Leading leading = leading_eigenpairs(lower_gram(wide ? m.t() : m), rank);
  const at::Tensor quarter = leading.values.pow(0.25).to(device);  // s^1/2

  GroupFactors factors;
  set_spectrum(factors, leading);
  factors.reconstruct_proj =
      wide ? leading.vectors.t().mul(quarter) : at::mm(m, leading.vectors.t()).div_(quarter);
  if (wide || root.defined()) {
    set_latent_proj(factors, w);
  } else {  // diag(s)^-1 B^T W = diag(s)^1/2 E_r^T
    factors.latent_proj = leading.vectors.mul(quarter.unsqueeze(1));
  }
  factors.optimum_error =
      std::abs(squared_error(m, factors, root) - leading.dropped) / leading.total;
  to_cpu(factors);
  return factors;
}

GroupFactors factorize_outputs(const at::Tensor& stacked_proj, at::Tensor covariance,
                               std::int64_t rank, at::Device device) {
  check_input(stacked_proj, rank);
  const at::Tensor w = stacked_proj.to(device);
  const at::Tensor moment = covariance.to(device);
  covariance.reset();
  const Leading leading = leading_eigenpairs(moment.clone(), rank);

  GroupFactors factors;
  factors.reconstruct_proj = leading.vectors.t().mul(leading.values.pow(0.25).to(device));
  set_spectrum(factors, leading);
  set_latent_proj(factors, w);
  // tr((I - U U^T) E[y y^T])
  const double kept = at::mm(leading.vectors, moment).mul_(leading.vectors).sum().item<double>();
  const double trace = moment.diagonal().sum().item<double>();
  factors.optimum_error = std::abs(trace - kept - leading.dropped) / leading.total;
  to_cpu(factors);
  return factors;
}

}  // namespace kvc

#include "convert/coded/basis.h"

#include "model/eigen/symmetric_eigen.h"

namespace kvc {
namespace {

constexpr double kDamping = 1e-2;  // relative to the mean of a part's diagonal

}  // namespace

CodedBasis coded_basis(const at::Tensor& covariance, const at::Tensor& metric) {
  const at::Tensor root = at::linalg_cholesky(metric);
  at::Tensor seen = at::mm(root.t(), at::mm(covariance, root));
  seen = (seen + seen.t()).mul_(0.5);
  const SymmetricEigen eigen = symmetric_eigen(std::move(seen), covariance.size(0));
  return {at::mm(eigen.vectors, root.t()),
          at::linalg_solve_triangular(root.t(), eigen.vectors.t(), /*upper=*/true),
          eigen.values.clamp_min(0)};
}

at::Tensor damped_cache_metric(at::Tensor metric, std::int64_t part_width) {
  at::Tensor diagonal = metric.diagonal();
  const double whole = diagonal.mean().item<double>();
  for (std::int64_t first = 0; first < diagonal.size(0); first += part_width) {
    at::Tensor part = diagonal.narrow(0, first, part_width);
    const double mean = part.mean().item<double>();
    part.add_(kDamping * (mean > 0 ? mean : whole > 0 ? whole : 1));
  }
  return metric;
}

}  // namespace kvc

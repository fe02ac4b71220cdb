#include "model/eigen/principal_basis.h"

#include <utility>

#include "model/eigen/symmetric_eigen.h"

namespace kvc {
namespace {

constexpr double kMetricDamping = 1e-2;  // relative to the mean of a part's diagonal

}  // namespace

at::Tensor damped_cache_metric(at::Tensor metric, std::int64_t part_width) {
  at::Tensor diagonal = metric.diagonal();
  const double whole = diagonal.mean().item<double>();
  for (std::int64_t first = 0; first < diagonal.size(0); first += part_width) {
    at::Tensor part = diagonal.narrow(0, first, part_width);
    const double mean = part.mean().item<double>();
    part.add_(kMetricDamping * (mean > 0 ? mean : whole > 0 ? whole : 1));
  }
  return metric;
}

at::Tensor submatrix(const at::Tensor& matrix, const at::Tensor& index) {
  return matrix.index_select(0, index).index_select(1, index);
}

PrincipalBasis principal_basis(const at::Tensor& covariance, const at::Tensor& metric,
                               std::int64_t rank, at::Device device) {
  const at::Tensor c = covariance.to(device);
  PrincipalBasis basis;
  if (!metric.defined()) {
    const SymmetricEigen eigen = symmetric_eigen(c.clone(), rank);
    basis.eigenvalues = eigen.values.cpu().clamp_min(0);
    basis.encoder = eigen.vectors.cpu().contiguous();
    basis.decoder = basis.encoder.t().contiguous();
    return basis;
  }
  const at::Tensor root = at::linalg_cholesky(metric.to(device));
  at::Tensor seen = at::mm(root.t(), at::mm(c, root));
  seen = (seen + seen.t()).mul_(0.5);
  const SymmetricEigen eigen = symmetric_eigen(std::move(seen), rank);
  basis.eigenvalues = eigen.values.cpu().clamp_min(0);
  basis.encoder = at::mm(eigen.vectors, root.t()).cpu();
  // R^T is upper triangular.
  basis.decoder =
      at::linalg_solve_triangular(root.t(), eigen.vectors.t().contiguous(), /*upper=*/true).cpu();
  return basis;
}

}  // namespace kvc

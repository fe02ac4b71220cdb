#include "convert/principal_basis.h"

#include <utility>

#include "model/eigen/symmetric_eigen.h"

namespace kvc {

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

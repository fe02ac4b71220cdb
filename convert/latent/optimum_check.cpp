#include "convert/latent/optimum_check.h"

#include <cmath>

#include "model/eigen/symmetric_eigen.h"

namespace kvc {
namespace {

// max |E E^T - I|
double orthogonality_defect(const at::Tensor& vectors) {
  at::Tensor gram = lower_gram(vectors.t());
  gram.diagonal().sub_(1);
  return gram.tril_().abs_().max().item<double>();
}

}  // namespace

double optimum_error(double energy, const at::Tensor& captured, const at::Tensor& values,
                     const at::Tensor& vectors) {
  const double total = values.sum().item<double>();
  const double misplaced =
      (captured.cpu() - values.cpu().narrow(0, 0, captured.size(0))).abs().sum().item<double>();
  return (std::abs(energy - total) + misplaced) / total + orthogonality_defect(vectors);
}

}  // namespace kvc

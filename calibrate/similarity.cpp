#include "calibrate/analysis.h"

#include <cmath>
#include <limits>

namespace kvc {
namespace {

// compare(i, j) for i <= j, mirrored.
template <typename Compare>
at::Tensor symmetric_matrix(const std::vector<at::Tensor>& layers, const Compare& compare) {
  const auto size = static_cast<std::int64_t>(layers.size());
  at::Tensor matrix = at::full({size, size}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  auto values = matrix.accessor<double, 2>();
  for (std::int64_t i = 0; i < size; ++i) {
    for (std::int64_t j = i; j < size; ++j) {
      if (layers[static_cast<std::size_t>(i)].defined() &&
          layers[static_cast<std::size_t>(j)].defined()) {
        values[i][j] = values[j][i] =
            compare(static_cast<std::size_t>(i), static_cast<std::size_t>(j));
      }
    }
  }
  return matrix;
}

// Without its mean; as its Gram matrix where that is the smaller of the two.
at::Tensor centred(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor rows = wide - wide.mean(0, /*keepdim=*/true);
  return rows.size(1) > rows.size(0) ? at::mm(rows, rows.t()) : rows;
}

// ||X^T Y||^2 of two sets as centred() gives them.
double cross_energy(const at::Tensor& x, const at::Tensor& y, bool grams) {
  return (grams ? (x * y).sum() : at::mm(x.t(), y).square().sum()).item<double>();
}

}  // namespace

at::Tensor cosine_matrix(const std::vector<at::Tensor>& layers) {
  std::vector<at::Tensor> unit;
  for (const at::Tensor& x : layers) {
    unit.push_back(x.defined() ? x / x.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-30)
                               : at::Tensor());
  }
  return symmetric_matrix(unit, [&](std::size_t i, std::size_t j) {
    return (unit[i] * unit[j]).sum(1).to(at::kDouble).mean().item<double>();
  });
}

at::Tensor cka_matrix(const std::vector<at::Tensor>& layers) {
  std::vector<at::Tensor> sets;
  std::vector<double> energy;
  bool grams = false;
  for (const at::Tensor& x : layers) {
    grams = grams || (x.defined() && x.size(1) > x.size(0));
    sets.push_back(x.defined() ? centred(x) : at::Tensor());
    energy.push_back(x.defined() ? cross_energy(sets.back(), sets.back(), grams) : 0);
  }
  return symmetric_matrix(sets, [&](std::size_t i, std::size_t j) {
    const double norms = std::sqrt(energy[i] * energy[j]);
    return norms > 0 ? cross_energy(sets[i], sets[j], grams) / norms : 0.0;
  });
}

}  // namespace kvc

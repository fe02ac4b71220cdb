#include "model/eigen/two_stage_eigen.h"

#include <algorithm>
#include <cmath>

#include "model/eigen/back_transform.h"
#include "model/eigen/band_reduction.h"
#include "model/eigen/band_tridiagonal.h"
#include "model/eigen/tridiagonal_eigen.h"

namespace kvc {
namespace {

constexpr int kMaxExponent = 1000;  // of the scale, so that it is a normal number

// The block columns of the lower triangle, times `scale`; diagonal blocks complete.
at::Tensor scaled_copy(const at::Tensor& matrix, double scale) {
  const std::int64_t n = matrix.size(0);
  at::Tensor copy = at::empty({n, n + kRowPadding}, matrix.options()).narrow(1, 0, n);
  for (std::int64_t begin = 0; begin < n; begin += kSymmetricBlock) {
    const std::int64_t width = std::min(kSymmetricBlock, n - begin), below = n - begin - width;
    const at::Tensor block = matrix.narrow(0, begin, width).narrow(1, begin, width);
    at::Tensor to = copy.narrow(1, begin, width);
    to.narrow(0, begin, width).copy_(block.tril() + block.tril(-1).t()).mul_(scale);
    at::Tensor lower = to.narrow(0, begin + width, below);
    at::mul_out(lower, matrix.narrow(0, begin + width, below).narrow(1, begin, width),
                at::scalar_tensor(scale, matrix.options()));
  }
  return copy;
}

// The larger one; NaN where either is.
double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

}  // namespace

double largest_magnitude(const at::Tensor& matrix) {
  const std::int64_t n = matrix.size(0);
  double largest = 0;
  for (std::int64_t begin = 0; begin < n; begin += kSymmetricBlock) {
    const std::int64_t width = std::min(kSymmetricBlock, n - begin), below = n - begin - width;
    const at::Tensor columns = matrix.narrow(1, begin, width);
    largest = larger(largest, columns.narrow(0, begin, width).tril().abs().max().item<double>());
    if (below > 0) {
      const auto [low, high] = at::aminmax(columns.narrow(0, begin + width, below));
      largest = larger(larger(largest, -low.item<double>()), high.item<double>());
    }
  }
  return largest;
}

std::pair<at::Tensor, at::Tensor> two_stage_eigen(at::Tensor matrix, double largest,
                                                  std::int64_t num_vectors) {
  const std::int64_t n = matrix.size(0);
  if (largest == 0) {
    return {at::zeros({n}, matrix.options()), at::eye(n, num_vectors, matrix.options())};
  }
  const int exponent = std::clamp(std::ilogb(largest) + 1, -kMaxExponent, kMaxExponent);
  at::Tensor scaled = scaled_copy(matrix, std::ldexp(1.0, -exponent));
  matrix.reset();

  BandReduction reduction = reduce_to_band(std::move(scaled));
  ChaseReflectors reflectors(n);
  const Tridiagonal tridiagonal = chase_band(reduction.band, reflectors);
  TridiagonalEigen eigen = tridiagonal_eigen(tridiagonal, num_vectors);
  apply_chase(reflectors, eigen.vectors, eigen.columns);
  apply_band_reduction(reduction, eigen.vectors);

  at::Tensor values = at::empty({n}, eigen.vectors.options());
  std::copy(eigen.values.begin(), eigen.values.end(), values.mutable_data_ptr<double>());
  return {values.mul_(std::ldexp(1.0, exponent)), eigen.vectors};
}

}  // namespace kvc

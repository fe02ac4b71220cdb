#include "model/eigen/subspace_iteration.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/eigen/symmetric_eigen.h"

namespace kvc {
namespace {

constexpr double kRounding = 1e-13;  // of the trace: nothing is left to find below
// Largest element of Q^T Q - 1 after one step of CholeskyQR behind which a second one reaches rounding.
constexpr double kNearlyOrthonormal = 1e-3;

// [n, count] of +-1, by the top bit of a multiplicative sequence.
at::Tensor signs(std::int64_t n, std::int64_t count) {
  at::Tensor block = at::empty({n, count}, at::kDouble);
  double* values = block.mutable_data_ptr<double>();
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (std::int64_t i = 0; i < n * count; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    values[i] = (state >> 63) != 0 ? 1 : -1;
  }
  return block;
}

// columns R^-1 with the Cholesky factor R of columns^T columns; undefined where that is singular to rounding.
at::Tensor cholesky_step(const at::Tensor& columns, const at::Tensor& gram) {
  const auto [factor, info] = at::linalg_cholesky_ex(gram);
  return info.item<int>() == 0
             ? at::linalg_solve_triangular(factor.t(), columns, /*upper=*/true, /*left=*/false)
             : at::Tensor();
}

// An orthonormal basis of the columns: CholeskyQR2 (Fukaya et al. 2014), which is products on any device, and
// Householder's where the columns are too close to dependent for it.
at::Tensor orthonormal(const at::Tensor& columns) {
  const at::Tensor once = cholesky_step(columns, lower_gram(columns));
  if (once.defined()) {
    const at::Tensor gram = lower_gram(once);
    const at::Tensor error = (gram - at::eye(gram.size(0), gram.options())).tril().abs().max();
    if (error.item<double>() < kNearlyOrthonormal) {
      return cholesky_step(once, gram);
    }
  }
  return std::get<0>(at::linalg_qr(columns));
}

// [n, width] orthonormal: `start`, filled up; without one, an image of random directions.
at::Tensor first_block(const at::Tensor& matrix, std::int64_t width, const at::Tensor& start) {
  at::Tensor block = signs(matrix.size(0), width).to(matrix.device());
  if (!start.defined()) {
    return orthonormal(at::mm(matrix, block));
  }
  const std::int64_t given = std::min(width, start.size(0));
  block.narrow(1, 0, given).copy_(start.narrow(0, 0, given).t());
  return orthonormal(block);
}

// A round's Ritz pairs of the block Q with Z = G Q.
struct Ritz {
  at::Tensor values;    // [width] descending
  at::Tensor rotation;  // [width, width], columns: Q rotation are the Ritz vectors
};

Ritz ritz_pairs(const at::Tensor& q, const at::Tensor& z) {
  const SymmetricEigen eigen = symmetric_eigen(at::mm(q.t(), z), q.size(1));
  return {eigen.values, eigen.vectors.t()};
}

at::Tensor column_squares(const at::Tensor& m) {
  constexpr std::int64_t kRows[] = {0};
  return m.square().sum(at::IntArrayRef(kRows));
}

// For the Ritz vectors `vectors` [n, width] with `products` = G vectors, the first `rank` wanted.
bool is_found(const Ritz& ritz, const at::Tensor& products, std::int64_t rank, double trace,
              double excess) {
  const at::Tensor squares = column_squares(products.narrow(1, 0, rank)).cpu();
  const at::Tensor values = ritz.values.cpu();
  const double* theta = values.const_data_ptr<double>();
  const double* square = squares.const_data_ptr<double>();
  const double last = theta[values.size(0) - 1];
  double missed = 0, captured = 0;
  for (std::int64_t i = 0; i < rank; ++i) {
    const double residual = std::max(0.0, square[i] - theta[i] * theta[i]);
    const double gap = std::max(theta[i] - last, kRounding * trace);
    missed += residual / gap;
    captured += theta[i];
  }
  return missed <= std::max(excess * std::max(0.0, trace - captured), kRounding * trace);
}

// T(G) vectors, orthonormal, with the Chebyshev polynomial of [0, bound]: it grows fastest of all beyond
// the eigenvalues that are not wanted. `products` = G vectors.
at::Tensor filtered(const at::Tensor& matrix, const at::Tensor& vectors, const at::Tensor& products,
                    double bound, int degree) {
  const double half = bound / 2;
  at::Tensor before = vectors, now = (products - half * vectors) / half;
  for (int step = 1; step < degree; ++step) {
    at::Tensor next = at::addmm(now, matrix, now, -half, 1).mul_(2 / half).sub_(before);
    before = now;
    now = next;
  }
  now.div_(column_squares(now).sqrt_().clamp_min_(1e-300));
  return orthonormal(now);
}

}  // namespace

LeadingSubspace leading_subspace(const at::Tensor& matrix, std::int64_t rank,
                                 const at::Tensor& start, const SubspaceOptions& options) {
  const std::int64_t n = matrix.dim() == 2 ? matrix.size(0) : 0;
  KVC_CHECK(
      n > 0 && matrix.size(1) == n && matrix.scalar_type() == at::kDouble && rank >= 1 && rank <= n,
      "leading_subspace: expected a square float64 matrix and 1 to {} directions", n);
  const double trace = matrix.diagonal().sum().item<double>();
  KVC_CHECK(std::isfinite(trace) && std::isfinite(matrix.sum().item<double>()),
            "leading_subspace: an element of the {} x {} matrix is not finite", n, n);
  const std::int64_t width = rank + options.oversampling;
  if (2 * width >= n) {  // a full decomposition is as cheap
    const SymmetricEigen eigen = symmetric_eigen(matrix.clone(), rank);
    return {eigen.values.narrow(0, 0, rank), eigen.vectors, 0};
  }
  at::Tensor q = first_block(matrix, width, start);
  int products = start.defined() ? 0 : 1;
  while (true) {
    const at::Tensor z = at::mm(matrix, q);
    ++products;
    const Ritz ritz = ritz_pairs(q, z);
    const at::Tensor vectors = at::mm(q, ritz.rotation);
    const at::Tensor images = at::mm(z, ritz.rotation);
    if (products >= options.most_products || is_found(ritz, images, rank, trace, options.excess)) {
      return {ritz.values.narrow(0, 0, rank), vectors.narrow(1, 0, rank).t().contiguous(),
              products};
    }
    const double bound = ritz.values[width - 1].item<double>();
    const bool exhausted =
        bound <= kRounding * trace;  // nothing below: a power step finds the rest
    q = exhausted ? orthonormal(images) : filtered(matrix, vectors, images, bound, options.degree);
    products += exhausted ? 0 : options.degree - 1;
  }
}

}  // namespace kvc

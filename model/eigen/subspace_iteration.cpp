#include "model/eigen/subspace_iteration.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/eigen/symmetric_eigen.h"

namespace kvc {
namespace {

constexpr double kRounding = 1e-13;  // of the trace: nothing is left to find below

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

at::Tensor first_block(std::int64_t n, std::int64_t width, const at::Tensor& start) {
  at::Tensor block = signs(n, width);
  if (start.defined()) {
    const std::int64_t given = std::min(width, start.size(0));
    block.narrow(1, 0, given).copy_(start.narrow(0, 0, given).t());
  }
  return std::get<0>(at::linalg_qr(block));
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

bool is_found(const Ritz& ritz, const at::Tensor& z, std::int64_t rank, double trace,
              double excess) {
  constexpr std::int64_t kRows[] = {0};
  const at::Tensor products = at::mm(z, ritz.rotation.narrow(1, 0, rank));
  const at::Tensor squares = products.square().sum(at::IntArrayRef(kRows));
  const double* theta = ritz.values.const_data_ptr<double>();
  const double* square = squares.const_data_ptr<double>();
  const double last = theta[ritz.values.size(0) - 1];
  double missed = 0, captured = 0;
  for (std::int64_t i = 0; i < rank; ++i) {
    const double residual = std::max(0.0, square[i] - theta[i] * theta[i]);
    const double gap = std::max(theta[i] - last, kRounding * trace);
    missed += residual / gap;
    captured += theta[i];
  }
  return missed <= std::max(excess * std::max(0.0, trace - captured), kRounding * trace);
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
  at::Tensor q = first_block(n, width, start);
  for (int round = 1;; ++round) {
    const at::Tensor z = at::mm(matrix, q);
    const Ritz ritz = ritz_pairs(q, z);
    if (round == options.most_rounds || is_found(ritz, z, rank, trace, options.excess)) {
      return {ritz.values.narrow(0, 0, rank),
              at::mm(q, ritz.rotation.narrow(1, 0, rank)).t().contiguous(), round};
    }
    q = std::get<0>(at::linalg_qr(z));
  }
}

}  // namespace kvc

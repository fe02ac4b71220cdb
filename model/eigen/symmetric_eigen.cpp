#include "model/eigen/symmetric_eigen.h"

#include <cmath>
#include <utility>

#include "core/error.h"
#include "model/eigen/two_stage_eigen.h"
#ifdef KVC_CUDA
#include "model/eigen/symmetric_eigen_cuda.h"
#endif

namespace kvc {
namespace {

constexpr std::int64_t kTwoStages = 512;  // below, LAPACK's dsyevd is faster

[[noreturn]] void fail_eigen(std::int64_t n, const std::string& reason) {
  fail(
      "the eigendecomposition of a {} x {} matrix failed ({}); do the weights or the "
      "calibration hold NaN or infinity?",
      n, n, reason);
}

SymmetricEigen lapack_eigen(at::Tensor matrix, std::int64_t num_vectors) {
  const auto [values, vectors] = at::linalg_eigh(matrix, "L");
  // LAPACK's columns are the rows of the transpose.
  const std::int64_t n = values.size(0);
  return {values.flip(0), vectors.t().narrow(0, n - num_vectors, num_vectors).flip(0)};
}

}  // namespace

SymmetricEigen symmetric_eigen(at::Tensor matrix, std::int64_t num_vectors) {
  const std::int64_t n = matrix.dim() == 2 ? matrix.size(0) : 0;
  KVC_CHECK(n > 0 && matrix.size(1) == n && matrix.scalar_type() == at::kDouble,
            "symmetric_eigen: expected a square float64 matrix");
  KVC_CHECK(num_vectors >= 1 && num_vectors <= n,
            "symmetric_eigen: {} eigenvectors of a {} x {} matrix", num_vectors, n, n);
#ifdef KVC_CUDA
  if (matrix.is_cuda()) {
    if (!at::isfinite(matrix.tril()).all().item<bool>()) {
      fail_eigen(n, "an element is not finite");
    }
    const at::Tensor values = syevd_cuda(matrix);
    return {values.flip(0), matrix.narrow(0, n - num_vectors, num_vectors).flip(0)};
  }
#endif
  const double largest = largest_magnitude(matrix);
  if (!std::isfinite(largest)) {
    fail_eigen(n, "an element is not finite");
  }
  try {
    if (n < kTwoStages) {
      return lapack_eigen(std::move(matrix), num_vectors);
    }
    const auto [values, vectors] = two_stage_eigen(std::move(matrix), largest, num_vectors);
    return {values, vectors.t()};
  } catch (const c10::Error& error) {
    fail_eigen(n, error.what_without_backtrace());
  }
}

}  // namespace kvc

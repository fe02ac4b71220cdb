#include "model/eigen/symmetric_eigen.h"

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::int64_t kGramBlock = 256;  // whose square is computed whole

[[noreturn]] void fail_eigen(std::int64_t n, const std::string& reason) {
  fail(
      "the eigendecomposition of a {} x {} matrix failed ({}); do the weights or the "
      "calibration hold NaN or infinity?",
      n, n, reason);
}

// Halves again and again: what is left of the diagonal, and one large product below it.
void fill_lower_gram(const at::Tensor& m, at::Tensor gram) {
  const std::int64_t n = m.size(1);
  if (n <= kGramBlock) {
    at::mm_out(gram, m.t(), m);
    return;
  }
  const std::int64_t half = (n / kGramBlock + 1) / 2 * kGramBlock, rest = n - half;
  const at::Tensor left = m.narrow(1, 0, half), right = m.narrow(1, half, rest);
  at::Tensor below = gram.narrow(0, half, rest).narrow(1, 0, half);
  at::mm_out(below, right.t(), left);
  fill_lower_gram(left, gram.narrow(0, 0, half).narrow(1, 0, half));
  fill_lower_gram(right, gram.narrow(0, half, rest).narrow(1, half, rest));
}

}  // namespace

SymmetricEigen symmetric_eigen(at::Tensor matrix, std::int64_t num_vectors) {
  const std::int64_t n = matrix.dim() == 2 ? matrix.size(0) : 0;
  KVC_CHECK(n > 0 && matrix.size(1) == n && matrix.scalar_type() == at::kDouble,
            "symmetric_eigen: expected a square float64 matrix");
  KVC_CHECK(num_vectors >= 1 && num_vectors <= n,
            "symmetric_eigen: {} eigenvectors of a {} x {} matrix", num_vectors, n, n);
  if (!at::isfinite(matrix.tril()).all().item<bool>()) {
    fail_eigen(n, "an element is not finite");
  }
#ifdef KVC_CUDA
  if (matrix.is_cuda()) {
    const at::Tensor values = syevd_cuda(matrix);
    return {values.flip(0), matrix.narrow(0, n - num_vectors, num_vectors).flip(0)};
  }
#endif
  try {
    const auto [values, vectors] = at::linalg_eigh(matrix, "L");
    // LAPACK's columns are the rows of the transpose.
    return {values.flip(0), vectors.t().narrow(0, n - num_vectors, num_vectors).flip(0)};
  } catch (const c10::Error& error) {
    fail_eigen(n, error.what_without_backtrace());
  }
}

at::Tensor lower_gram(const at::Tensor& m) {
  at::Tensor gram = at::empty({m.size(1), m.size(1)}, m.options());
  fill_lower_gram(m, gram);
  return gram;
}

}  // namespace kvc

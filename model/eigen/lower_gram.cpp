#include "model/eigen/lower_gram.h"

#include <cstdint>

namespace kvc {
namespace {

constexpr std::int64_t kGramBlock = 256;  // whose square is computed whole

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

at::Tensor lower_gram(const at::Tensor& m) {
  at::Tensor gram = at::empty({m.size(1), m.size(1)}, m.options());
  fill_lower_gram(m, gram);
  return gram;
}

}  // namespace kvc

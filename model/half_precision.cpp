#include "model/half_precision.h"

namespace kvc {
namespace {

// Rounding to 11 bits leaves less than a tenth of this; what is lost below float16's smallest numbers adds to it.
constexpr double kMostError = 1e-6;

}  // namespace

bool half_holds(const at::Tensor& matrix) {
  const at::Tensor rounded = matrix.to(at::kHalf).to(at::kDouble);
  if (!rounded.isfinite().all().item<bool>()) {
    return false;
  }
  const at::Tensor exact = matrix.to(at::kDouble);
  const at::Tensor error = (rounded - exact).square(), energy = exact.square();
  for (const std::int64_t axis : {0, 1}) {
    if ((error.sum(axis) > kMostError * energy.sum(axis)).any().item<bool>()) {
      return false;
    }
  }
  return true;
}

at::Tensor to_half_or_float(const at::Tensor& matrix) {
  return matrix.to(half_holds(matrix) ? at::kHalf : at::kFloat).contiguous();
}

}  // namespace kvc

#include "export/factor_type.h"

#include "core/error.h"
#include "model/weights.h"

namespace kvc {
namespace {

constexpr const char* kAuto = "auto";

// Rounding to 11 bits leaves less than a tenth of this; what is lost below float16's smallest numbers adds to it.
constexpr double kMostError = 1e-6;

bool half_holds(const at::Tensor& factor) {
  const at::Tensor rounded = factor.to(at::kHalf).to(at::kDouble);
  if (!rounded.isfinite().all().item<bool>()) {
    return false;
  }
  const at::Tensor exact = factor.to(at::kDouble);
  const at::Tensor error = (rounded - exact).square(), energy = exact.square();
  for (const std::int64_t axis : {0, 1}) {
    if ((error.sum(axis) > kMostError * energy.sum(axis)).any().item<bool>()) {
      return false;
    }
  }
  return true;
}

}  // namespace

void check_factor_dtype(const std::string& name) {
  if (name == kAuto) {
    return;
  }
  try {
    parse_scalar_type(name);
  } catch (const Error&) {
    fail_usage("--factor-dtype {}: expected auto, float32, bfloat16 or float16", name);
  }
}

at::ScalarType factor_type(const FactorFile& factors, const TensorInfo& factor,
                           const std::string& name) {
  if (name != kAuto) {
    return parse_scalar_type(name);
  }
  return factor.shape.size() == 2 && half_holds(factors.load(factor.name, at::kFloat)) ? at::kHalf
                                                                                       : at::kFloat;
}

}  // namespace kvc

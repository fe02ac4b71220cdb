#include "export/factor_type.h"

#include "core/error.h"
#include "model/weights.h"

namespace kvc {
namespace {

constexpr const char* kAuto = "auto";

}  // namespace

void check_factor_dtype(const std::string& name) {
  if (chooses_factor_type(name)) {
    return;
  }
  try {
    parse_scalar_type(name);
  } catch (const Error&) {
    fail_usage("--factor-dtype {}: expected auto, float32, bfloat16 or float16", name);
  }
}

bool chooses_factor_type(const std::string& name) { return name == kAuto; }

at::ScalarType factor_type(const FactorFile& factors, const TensorInfo& factor,
                           const std::string& name) {
  if (!chooses_factor_type(name)) {
    return parse_scalar_type(name);
  }
  return factor.shape.size() == 2 && half_holds(factors.load(factor.name, at::kFloat)) ? at::kHalf
                                                                                       : at::kFloat;
}

}  // namespace kvc

#include "model/linear.h"

#include "core/error.h"
#include "model/int8_linear.h"

namespace kvc {

WeightType parse_weight_type(const std::string& name) {
  if (name == "int8" || name.empty()) {
    return name.empty() ? WeightType::kFloat : WeightType::kInt8;
  }
  fail_usage("weight dtype \"{}\" is not supported; supported: int8, or none: that of --dtype",
             name);
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return scales.defined() ? int8_linear(x, weight, scales, bias) : float_linear(x, weight, bias);
}

Linear Linear::rows(std::int64_t first, std::int64_t count) const {
  const auto of = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, first, count) : tensor;
  };
  return {of(weight), of(bias), of(scales)};
}

Linear Linear::stacked(std::int64_t index) const {
  return {weight.select(0, index), {}, scales.defined() ? scales.select(0, index) : scales};
}

}  // namespace kvc

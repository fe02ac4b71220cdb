#include "model/linear.h"

#include "model/float_linear.h"
#include "model/int8_linear.h"

namespace kvc {

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return scales.defined() ? int8_linear(x, weight, scales, bias) : float_linear(x, weight, bias);
}

Linear Linear::stacked(std::int64_t index) const {
  return {weight.select(0, index), {}, scales.defined() ? scales.select(0, index) : scales};
}

}  // namespace kvc

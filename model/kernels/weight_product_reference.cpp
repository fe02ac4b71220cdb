#include "model/kernels/element.h"
#include "model/kernels/weight_product.h"

namespace kvc {
namespace {

float weight_at(const WeightProductParams& params, std::int64_t index) {
  switch (params.element) {
    case WeightElement::kFloat32:
      break;
    case WeightElement::kBFloat16:
      return float_of_bfloat16(static_cast<const std::uint16_t*>(params.weight)[index]);
    case WeightElement::kFloat16:
      return float_of_float16(static_cast<const std::uint16_t*>(params.weight)[index]);
  }
  return static_cast<const float*>(params.weight)[index];
}

}  // namespace

void weight_product_reference(const WeightProductParams& params, std::int64_t first,
                              std::int64_t last, float* y) {
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    const float* x = params.x + row * params.x_stride;
    for (std::int64_t output = first; output < last; ++output) {
      double sum = 0;
      for (std::int64_t channel = 0; channel < params.in; ++channel) {
        sum += static_cast<double>(x[channel]) * weight_at(params, output * params.in + channel);
      }
      *y++ = static_cast<float>(sum);
    }
  }
}

}  // namespace kvc

#include "model/kernels/element.h"
#include "model/kernels/int8_product.h"

namespace kvc {
namespace {

float weight_at(const Int8Matrix& matrix, std::int64_t row, std::int64_t channel) {
  const std::int64_t groups = int8_groups(matrix.in);
  const float scale = float_of_float16(matrix.scales[row * groups + channel / kInt8Group]);
  return scale * static_cast<float>(matrix.codes[row * groups * kInt8Group + channel]);
}

}  // namespace

void dequantize_int8_reference(const Int8Matrix& matrix, std::int64_t first, std::int64_t last,
                               WeightElement to, void* out) {
  std::int64_t index = 0;
  for (std::int64_t row = first; row < last; ++row) {
    for (std::int64_t channel = 0; channel < matrix.in; ++channel, ++index) {
      const float value = weight_at(matrix, row, channel);
      if (to == WeightElement::kFloat32) {
        static_cast<float*>(out)[index] = value;
      } else {
        static_cast<std::uint16_t*>(out)[index] =
            to == WeightElement::kBFloat16 ? bfloat16_of(value) : float16_of(value);
      }
    }
  }
}

void int8_product_reference(const Int8ProductParams& params, std::int64_t first, std::int64_t last,
                            float* y) {
  const std::int64_t groups = int8_groups(params.weight.in);
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    const std::int16_t* x = params.x + row * groups * kInt8Group;
    const float* scales = params.x_scales + row * groups;
    for (std::int64_t output = first; output < last; ++output) {
      double sum = 0;
      for (std::int64_t channel = 0; channel < params.weight.in; ++channel) {
        sum += static_cast<double>(scales[channel / kInt8Group]) * x[channel] *
               weight_at(params.weight, output, channel);
      }
      *y++ = static_cast<float>(sum);
    }
  }
}

}  // namespace kvc

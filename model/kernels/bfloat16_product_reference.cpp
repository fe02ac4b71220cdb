#include <cstdint>
#include <vector>

#include "model/kernels/bfloat16_product.h"
#include "model/kernels/element.h"

namespace kvc {

void bfloat16_product_reference(const Bfloat16Product& product) {
  std::vector<std::uint16_t> rounded(static_cast<std::size_t>(product.in));
  for (std::int64_t output = 0; output < product.out; ++output) {
    const std::uint16_t* weight = rounded.data();
    if (product.weight != nullptr) {
      weight = product.weight + output * product.in;
    } else {
      dequantize_int8_reference(product.int8, output, output + 1, WeightElement::kBFloat16,
                                rounded.data());
    }
    for (std::int64_t row = 0; row < product.num_rows; ++row) {
      double sum = product.bias == nullptr ? 0 : product.bias[output];
      for (std::int64_t i = 0; i < product.in; ++i) {
        sum += static_cast<double>(float_of_bfloat16(product.x[row * product.x_stride + i])) *
               float_of_bfloat16(weight[i]);
      }
      product.y[row * product.y_stride + output] = bfloat16_of(static_cast<float>(sum));
    }
  }
}

}  // namespace kvc

#include <algorithm>
#include <bit>

#include "model/kernels/element.h"
#include "model/kernels/int8_matrix.h"
#include "model/kernels/int8_product.h"

namespace kvc {
namespace {

// Bits of the largest magnitude of a group; from those of infinity on if anything is not finite.
std::uint32_t largest_bits(const float* values) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < kInt8Group; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffU);
  }
  return largest;
}

// Nearest multiples of 1 / inverse, halves to even, within -limit .. limit: in the low bits of a sum
// with a number whose last place is 1.
template <class Code>
void round_group(const float* values, float inverse, float limit, Code* codes) {
  constexpr float kShift = 0x1.8p23f;
  for (std::int64_t i = 0; i < kInt8Group; ++i) {
    const float shifted = std::min(std::max(values[i] * inverse, -limit), limit) + kShift;
    codes[i] = static_cast<Code>(std::bit_cast<std::int32_t>(shifted) -
                                 std::bit_cast<std::int32_t>(kShift));
  }
}

// body(values, group) for every group, the last one padded with zeros.
template <class Body>
void for_each_group(const float* values, std::int64_t in, const Body& body) {
  std::int64_t group = 0;
  for (; (group + 1) * kInt8Group <= in; ++group) {
    body(values + group * kInt8Group, group);
  }
  if (group * kInt8Group < in) {
    float padded[kInt8Group] = {};
    std::copy(values + group * kInt8Group, values + in, padded);
    body(padded, group);
  }
}

}  // namespace

bool quantize_int8_row(const float* weights, std::int64_t in, std::int8_t* codes,
                       std::uint16_t* scales) {
  constexpr std::uint16_t kInfinity = 0x7c00;
  bool fits = true;
  for_each_group(weights, in, [&](const float* values, std::int64_t group) {
    const std::uint32_t bits = largest_bits(values);
    const bool finite = bits < 0x7f800000U;
    scales[group] = finite ? float16_of(std::bit_cast<float>(bits) / 127) : kInfinity;
    fits &= scales[group] < kInfinity;
    const float scale = float_of_float16(scales[group]);
    round_group(values, scale > 0 ? 1 / scale : 0, 127, codes + group * kInt8Group);
  });
  return fits;
}

void quantize_int16_row(const float* x, std::int64_t in, std::int16_t* codes, float* scales) {
  for_each_group(x, in, [&](const float* values, std::int64_t group) {
    const float largest = std::bit_cast<float>(largest_bits(values));
    scales[group] = largest / 32767;
    round_group(values, largest > 0 ? 32767 / largest : 0, 32767, codes + group * kInt8Group);
  });
}

}  // namespace kvc

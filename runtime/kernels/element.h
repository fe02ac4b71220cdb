// 16-bit floating point to float32, one number at a time: for the reference and odd sizes.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

inline float widen_float16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 1023);
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return fraction == 0 ? sign * INFINITY : NAN;
  }
  return exponent == 0 ? sign * std::ldexp(fraction, -24)
                       : sign * std::ldexp(1024.0f + fraction, exponent - 25);
}

inline float load_element(const void* base, std::int64_t index, KvElement element) {
  if (element == KvElement::kFloat32) {
    return static_cast<const float*>(base)[index];
  }
  const std::uint16_t bits = static_cast<const std::uint16_t*>(base)[index];
  return element == KvElement::kBFloat16
             ? std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16)
             : widen_float16(bits);
}

}  // namespace kvc

// 16-bit floating point, one number at a time: for references, scales and odd sizes.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace kvc {

inline float float_of_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline float float_of_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00) {  // infinite or not a number
    return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  }
  // Exponents differ by 112; the product also normalises what is subnormal in float16.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

// Round to nearest even; a NaN stays one if its high half has a fraction.
inline std::uint16_t bfloat16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Round to nearest even. Finite values only; infinite from 65520 on.
inline std::uint16_t float16_of(float value) {
  const auto sign = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) {
    return sign | 0x7c00;
  }
  if (magnitude < 0x1p-14f) {  // subnormal: multiples of 2^-24
    return sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  }
  const auto bits = std::bit_cast<std::uint32_t>(magnitude) - (112U << 23);
  return sign | static_cast<std::uint16_t>((bits + 0xfff + ((bits >> 13) & 1)) >> 13);
}

}  // namespace kvc

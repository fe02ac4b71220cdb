// As narrow.h, in a few operations each, for finite numbers.
#pragma once

#include <bit>
#include <cstdint>

namespace kvc {

inline float fast_widen_float16(std::uint16_t bits) {
  constexpr float kExponents = 0x1p112f;  // from float16's exponents to float32's
  const float size =
      std::bit_cast<float>(static_cast<std::uint32_t>(bits & 0x7FFF) << 13) * kExponents;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(size) |
                              static_cast<std::uint32_t>(bits & 0x8000) << 16);
}

// Ties to even; saturates at +-65504.
inline std::uint16_t fast_nearest_float16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  const float size = std::bit_cast<float>(magnitude);
  // Below 2^-14 a step is 2^-24, that of floats around 0.5.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(size + 0.5f) - 0x3F000000;
  const std::uint32_t normal =
      (magnitude - (std::uint32_t{112} << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  const std::uint32_t narrow = magnitude < (std::uint32_t{113} << 23) ? small : normal;
  return static_cast<std::uint16_t>((narrow < 0x7BFF ? narrow : 0x7BFF) | ((bits >> 16) & 0x8000));
}

// The largest float16 <= x, and the smallest >= x, if they exist.
inline std::uint16_t fast_float16_below(float x) {
  const std::uint16_t nearest = fast_nearest_float16(x);
  if (!(fast_widen_float16(nearest) > x) || nearest == 0xFBFF) {
    return nearest;
  }
  const bool negative = (nearest & 0x8000) != 0;
  return static_cast<std::uint16_t>(negative ? nearest + 1 : nearest == 0 ? 0x8001 : nearest - 1);
}
inline std::uint16_t fast_float16_above(float x) { return fast_float16_below(-x) ^ 0x8000; }

}  // namespace kvc

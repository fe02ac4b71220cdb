// Float32 to 16-bit floating point, one number at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace kvc {

enum class Rounding {
  kNearest,
  kDown,
  kUp
};  // nearest: ties to even; down: towards minus infinity

// Saturates at +-65504; NaN stays NaN.
inline std::uint16_t narrow_float16(float x, Rounding rounding) {
  const bool negative = std::signbit(x);
  if (std::isnan(x)) {
    return negative ? 0xFE00 : 0x7E00;
  }
  const float size = std::min(std::fabs(x), 65504.0f);
  const int exponent = size == 0 ? -14 : std::max(std::ilogb(size), -14);
  const float steps = std::ldexp(size, 10 - exponent);  // exact
  const bool away = rounding == (negative ? Rounding::kDown : Rounding::kUp);
  const float whole = rounding == Rounding::kNearest ? std::nearbyint(steps)
                      : away                         ? std::ceil(steps)
                                                     : std::floor(steps);
  const auto bits = static_cast<std::uint32_t>(((exponent + 14) << 10) + static_cast<int>(whole));
  return static_cast<std::uint16_t>(std::min(bits, 0x7BFFu) | (negative ? 0x8000u : 0u));
}

inline std::uint16_t narrow_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace kvc

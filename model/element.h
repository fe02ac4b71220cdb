// Branch-free conversions between element types of tensors, so loops over them vectorise.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cstdint>

namespace kvc {

template <typename T>
float widen(T value) {
  return static_cast<float>(value);
}

template <typename T>
T narrow(float value) {
  return static_cast<T>(value);
}

// Rounds to nearest even. A NaN stays a NaN: its low bits are zero, because it comes from 16-bit
// values.
template <>
inline c10::BFloat16 narrow<c10::BFloat16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounding = 0x7fff + ((bits >> 16) & 1);
  return {static_cast<std::uint16_t>((bits + rounding) >> 16), c10::BFloat16::from_bits()};
}

}  // namespace kvc

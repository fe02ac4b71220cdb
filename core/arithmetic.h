// Arithmetic on sizes.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace kvc {

// Arithmetic on sizes that come from files: a result that does not fit is an Error, never a wrap.
template <typename Integer>
Integer checked_mul(Integer a, Integer b, std::string_view subject) {
  Integer result{};
  KVC_CHECK(!__builtin_mul_overflow(a, b, &result), "{}: {} * {} does not fit in 64 bits", subject,
            a, b);
  return result;
}

template <typename Integer>
Integer checked_add(Integer a, Integer b, std::string_view subject) {
  Integer result{};
  KVC_CHECK(!__builtin_add_overflow(a, b, &result), "{}: {} + {} does not fit in 64 bits", subject,
            a, b);
  return result;
}

// The multiple of `step` next to a count that is not below it. count >= 0, step >= 1; their sum fits.
constexpr std::int64_t round_up(std::int64_t count, std::int64_t step) {
  return (count + step - 1) / step * step;
}

// The largest not above `count`.
constexpr std::int64_t round_down(std::int64_t count, std::int64_t step) {
  return count / step * step;
}

}  // namespace kvc

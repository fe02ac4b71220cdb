// Arithmetic on sizes that come from files: a result that does not fit is an Error, never a wrap.
#pragma once

#include <string_view>

#include "core/error.h"

namespace kvc {

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

}  // namespace kvc

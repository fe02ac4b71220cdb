// What Jinja's grammar and methods take for a digit.
#pragma once

namespace kvc::jinja {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace kvc::jinja

// Numbers in settings and files.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace kvc {

// The number that all of `text` is, an integer to a base if one is given; false for anything else, or beyond the range of
// the type.
template <typename Number, typename... Base>
bool parse_number(std::string_view text, Number& number, Base... base) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base...);
  return error == std::errc() && stop == end;
}

}  // namespace kvc

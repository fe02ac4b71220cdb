#include "model/tokenizer/byte_token.h"

#include <fmt/format.h>

#include <charconv>

namespace kvc {

std::string token_of_byte(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits.front() == '+') digits.remove_prefix(1);  // Rust's from_str_radix takes a sign
  unsigned value = 0;
  const char* end = digits.data() + digits.size();
  const auto [parsed, error] = std::from_chars(digits.data(), end, value, 16);
  if (error != std::errc() || parsed != end) return std::nullopt;
  return static_cast<char>(value);
}

}  // namespace kvc

// The tokens <0x00> ... <0xFF> of vocabularies with byte fallback.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvc {

std::string token_of_byte(unsigned char byte);
// nullopt: an ordinary token.
std::optional<char> byte_of_token(std::string_view token);

}  // namespace kvc

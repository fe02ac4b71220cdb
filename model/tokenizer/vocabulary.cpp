#include "model/tokenizer/vocabulary.h"

#include <fmt/format.h>
#include "core/error.h"
#include "core/parse_number.h"

namespace kvc {

void Vocabulary::add(const std::string& token, std::int32_t id, const std::string& subject) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1, nullptr);
  KVC_CHECK(tokens_[index] == nullptr, "{}: tokens \"{}\" and \"{}\" have one id, {}", subject,
            *tokens_[index], token, id);
  const auto [entry, inserted] = ids_.emplace(token, id);
  KVC_CHECK(inserted, "{}: token \"{}\" has two ids", subject, token);
  tokens_[index] = &entry->first;
}

std::optional<std::int32_t> Vocabulary::id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::token(std::int64_t id) const {
  return id >= 0 && id < id_bound() ? tokens_[static_cast<std::size_t>(id)] : nullptr;
}

std::string token_of_byte(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits.front() == '+') digits.remove_prefix(1);  // Rust's from_str_radix takes a sign
  unsigned value = 0;
  if (!parse_number(digits, value, 16)) return std::nullopt;
  return static_cast<char>(value);
}

}  // namespace kvc

// The model's tokens and their ids.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvc {

// Lets maps keyed by std::string be asked with a std::string_view.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

template <typename Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  void reserve(std::size_t num_tokens) { ids_.reserve(num_tokens); }
  // Throws Error when the token or the id is taken already.
  void add(const std::string& token, std::int32_t id, const std::string& subject);

  std::optional<std::int32_t> id(std::string_view token) const;
  const std::string* token(std::int64_t id) const;  // nullptr: no token has this id
  std::int64_t num_tokens() const { return static_cast<std::int64_t>(ids_.size()); }
  std::int64_t id_bound() const { return static_cast<std::int64_t>(tokens_.size()); }

 private:
  StringMap<std::int32_t> ids_;
  std::vector<const std::string*> tokens_;  // by id; they point into ids_
};

// The tokens <0x00> ... <0xFF> of vocabularies with byte fallback.
std::string token_of_byte(unsigned char byte);
// nullopt: an ordinary token.
std::optional<char> byte_of_token(std::string_view token);

}  // namespace kvc

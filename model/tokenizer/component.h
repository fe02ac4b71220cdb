// What the parts of tokenizer.json have in common: each part is a table of rows (type, maker), and
// a type without a row is refused by its name.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cstddef>
#include "core/error.h"

namespace kvc {

// Unlike kvc::Json it sorts keys, which makes vocabularies of 100000 entries fast to parse; their
// order means nothing here.
using TokenizerJson = nlohmann::json;

struct AlignedText;
struct Pieces;

// How much backtracking the patterns of a tokenizer may do on one text. Patterns come from files: with some, a search takes time exponential in the text's length. The
// budget is far above what the patterns of real tokenizers need.
class SearchBudget {
 public:
  explicit SearchBudget(std::size_t text_bytes) : left_(100'000'000 + 2000 * text_bytes) {}

  std::uint64_t left() const { return left_; }
  void charge(std::uint64_t retries) { left_ -= retries < left_ ? retries : left_; }

 private:
  std::uint64_t left_;  // steps back
};

using TextNormalizer = std::function<void(AlignedText&, SearchBudget&)>;
using PreTokenizer = std::function<void(Pieces&, SearchBudget&)>;
using PostProcessor = std::function<void(std::vector<std::int64_t>& ids)>;
// Tokens in, pieces of text out; the text is all pieces joined.
using TokenDecoder = std::function<void(std::vector<std::string>& tokens)>;

template <typename Component>
struct ComponentRow {
  std::string_view type;
  Component (*make)(const TokenizerJson& json, const std::string& subject);
};

// Value of a required key, with its type checked. `subject` is "<file>: <part>".
template <typename T>
T component_value(const TokenizerJson& json, std::string_view key, const std::string& subject) {
  const auto found = json.find(key);
  KVC_CHECK(found != json.end(), "{}: key \"{}\" is missing", subject, key);
  constexpr bool is_count = std::is_integral_v<T> && !std::is_same_v<T, bool>;
  try {
    if constexpr (is_count) {
      if (found->is_number_unsigned() && std::in_range<T>(found->template get<std::uint64_t>())) {
        return found->template get<T>();
      }
    } else {
      return found->template get<T>();
    }
  } catch (const nlohmann::json::exception&) {
  }
  fail("{}: key \"{}\" has a value of the wrong type ({})", subject, key, found->type_name());
}

// The same for a key that may be absent or null.
template <typename T>
T component_value(const TokenizerJson& json, std::string_view key, T absent,
                  const std::string& subject) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return absent;
  return component_value<T>(json, key, subject);
}

// Value of a required key that is one character.
char32_t component_character(const TokenizerJson& json, std::string_view key,
                             const std::string& subject);

// Null makes an empty component.
template <typename Component>
Component make_component(const TokenizerJson& json, std::span<const ComponentRow<Component>> rows,
                         const std::string& subject) {
  if (json.is_null()) return {};
  KVC_CHECK(json.is_object(), "{}: expected an object or null, found {}", subject,
            json.type_name());
  const auto type = component_value<std::string>(json, "type", subject);
  std::string known;
  for (const ComponentRow<Component>& row : rows) {
    if (row.type == type) return row.make(json, fmt::format("{} {}", subject, type));
    known += (known.empty() ? "" : ", ") + std::string(row.type);
  }
  fail("{}: \"{}\" is not supported; supported: {}", subject, type, known);
}

// The components listed under `key`, which apply one after the other.
template <typename Component>
std::vector<Component> make_members(const TokenizerJson& json, std::string_view key,
                                    Component (*make)(const TokenizerJson&, const std::string&),
                                    const std::string& subject) {
  const auto members = json.find(key);
  KVC_CHECK(members != json.end() && members->is_array(), "{}: \"{}\" is missing or not a list",
            subject, key);
  std::vector<Component> components;
  for (const TokenizerJson& member : *members) {
    KVC_CHECK(!member.is_null(), "{}: a member of \"{}\" is null", subject, key);
    components.push_back(make(member, subject));
  }
  return components;
}

}  // namespace kvc

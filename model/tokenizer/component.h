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
#include <vector>

#include "core/error.h"

namespace kvc {

// Unlike kvc::Json it sorts keys, which makes vocabularies of 100000 entries fast to parse; their
// order means nothing here.
using TokenizerJson = nlohmann::json;

using TextNormalizer = std::function<std::string(std::string)>;
// Pieces in, pieces out; no piece is empty.
using PreTokenizer = std::function<std::vector<std::string>(std::vector<std::string>)>;
using PostProcessor = std::function<std::vector<std::int64_t>(std::vector<std::int64_t>)>;
// Tokens in, pieces of text out; the text is all pieces joined.
using TokenDecoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

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
  const bool is_count = std::is_integral_v<T> && !std::is_same_v<T, bool>;
  try {
    if (!is_count || found->is_number_unsigned()) return found->template get<T>();
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

// A component that applies the ones listed under `key` one after the other.
template <typename Component>
Component make_sequence(const TokenizerJson& json, std::string_view key,
                        Component (*make)(const TokenizerJson&, const std::string&),
                        const std::string& subject) {
  const auto members = component_value<std::vector<TokenizerJson>>(json, key, subject);
  std::vector<Component> components;
  for (const TokenizerJson& member : members) {
    KVC_CHECK(!member.is_null(), "{}: a member of \"{}\" is null", subject, key);
    components.push_back(make(member, subject));
  }
  return [components = std::move(components)](auto value) {
    for (const Component& component : components) value = component(std::move(value));
    return value;
  };
}

}  // namespace kvc

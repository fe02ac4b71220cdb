#include "model/config_reader.h"

#include <cmath>

#include "core/error.h"

namespace kvc {
namespace {

std::string shortened(const Json& value) {
  constexpr std::size_t kMaxCharacters = 60;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > kMaxCharacters ? text.substr(0, kMaxCharacters) + "..." : text;
}

// nullopt when `value` is no integer or does not fit.
std::optional<std::int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    return number <= static_cast<std::uint64_t>(INT64_MAX)
               ? std::optional(static_cast<std::int64_t>(number))
               : std::nullopt;
  }
  return value.is_number_integer() ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

}  // namespace

void ConfigReader::fail_kind(const char* key, const Json& found,
                             const std::string& expected) const {
  fail("{}: \"{}\" is {}; expected {}", subject_, key, shortened(found), expected);
}

const Json* ConfigReader::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json& ConfigReader::required(const char* key) const {
  const Json* found = find(key);
  KVC_CHECK(found != nullptr, "{}: \"{}\" is missing", subject_, key);
  return *found;
}

std::int64_t ConfigReader::integer(const char* key, std::int64_t min, std::int64_t max) const {
  const Json& value = required(key);
  const auto number = as_integer(value);
  if (!number || *number < min || *number > max) {
    fail_kind(key, value, fmt::format("an integer from {} to {}", min, max));
  }
  return *number;
}

std::int64_t ConfigReader::integer_or(const char* key, std::int64_t fallback, std::int64_t min,
                                      std::int64_t max) const {
  return find(key) == nullptr ? fallback : integer(key, min, max);
}

std::vector<std::int64_t> ConfigReader::integers(const char* key) const {
  const Json* found = find(key);
  std::vector<std::int64_t> values;
  if (found == nullptr) {
    return values;
  }
  const auto add = [&](const Json& item) {
    const auto number = as_integer(item);
    if (!number) {
      fail_kind(key, *found, "an integer or a list of integers");
    }
    values.push_back(*number);
  };
  if (found->is_array()) {
    for (const Json& item : *found) {
      add(item);
    }
  } else {
    add(*found);
  }
  return values;
}

double ConfigReader::number(const char* key) const {
  const Json& value = required(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    fail_kind(key, value, "a number");
  }
  return value.get<double>();
}

double ConfigReader::number_or(const char* key, double fallback) const {
  return find(key) == nullptr ? fallback : number(key);
}

std::vector<double> ConfigReader::numbers(const char* key) const {
  const Json& list = required(key);
  std::vector<double> values;
  for (const Json& value : list.is_array() ? list : Json::array({nullptr})) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      fail_kind(key, list, "a list of numbers");
    }
    values.push_back(value.get<double>());
  }
  return values;
}

double ConfigReader::fraction_or(const char* key, double fallback) const {
  const Json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_number_float()) {
    fail_kind(key, *value, "a number with a fraction or an exponent, such as 1e-6");
  }
  return number(key);
}

bool ConfigReader::boolean_or(const char* key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    fail_kind(key, *value, "true or false");
  }
  return value->get<bool>();
}

std::string ConfigReader::text(const char* key) const {
  const Json& value = required(key);
  if (!value.is_string()) {
    fail_kind(key, value, "a string");
  }
  return value.get<std::string>();
}

std::string ConfigReader::text_or(const char* key, const std::string& fallback) const {
  return find(key) == nullptr ? fallback : text(key);
}

std::vector<std::string> ConfigReader::texts(const char* key) const {
  const Json* found = find(key);
  std::vector<std::string> values;
  if (found == nullptr) {
    return values;
  }
  if (!found->is_array()) {
    fail_kind(key, *found, "a list of strings");
  }
  for (const Json& item : *found) {
    if (!item.is_string()) {
      fail_kind(key, *found, "a list of strings");
    }
    values.push_back(item.get<std::string>());
  }
  return values;
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) {
    keys.push_back(key);
  }
  return keys;
}

const Json* ConfigReader::object(const char* key) const {
  const Json* found = find(key);
  if (found == nullptr) {
    return nullptr;
  }
  if (!found->is_object()) {
    fail_kind(key, *found, "an object");
  }
  return found->empty() ? nullptr : found;
}

}  // namespace kvc

// Reads a JSON object whose fields are all known. Errors name the file, the field, what was expected and
// what was found.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace kvc {

// The fields of one JSON object; every field must be read.
class JsonFields {
 public:
  JsonFields(const Json& json, std::string subject) : json_(json), subject_(std::move(subject)) {
    KVC_CHECK(json.is_object(), "{}: expected an object, found {}", subject_, json.type_name());
  }

  const Json& at(const char* name) {
    const auto found = json_.find(name);
    KVC_CHECK(found != json_.end(), "{}: \"{}\" is missing", subject_, name);
    ++read_;
    return *found;
  }

  // nullptr if absent.
  const Json* optional(const char* name) {
    const auto found = json_.find(name);
    read_ += found == json_.end() ? 0 : 1;
    return found == json_.end() ? nullptr : &*found;
  }

  const Json& list(const char* name) {
    const Json& value = at(name);
    KVC_CHECK(value.is_array(), "{}: \"{}\" must be a list, found {}", subject_, name,
              excerpt(value));
    return value;
  }

  std::string text(const char* name) {
    const Json& value = at(name);
    KVC_CHECK(value.is_string(), "{}: \"{}\" must be text, found {}", subject_, name,
              excerpt(value));
    return value.get<std::string>();
  }

  // A name that `parse` knows.
  template <typename Enum>
  void read(const char* name, Enum& out, Enum (*parse)(const std::string&)) {
    const std::string value = text(name);
    try {
      out = parse(value);
    } catch (const Error& error) {
      fail("{}: {}", subject_, error.what());
    }
  }

  void read(const char* name, bool& out) {
    const Json& value = at(name);
    KVC_CHECK(value.is_boolean(), "{}: \"{}\" must be true or false, found {}", subject_, name,
              excerpt(value));
    out = value.get<bool>();
  }

  void read(const char* name, double& out) {
    const Json& value = at(name);
    KVC_CHECK(value.is_number(), "{}: \"{}\" must be a number, found {}", subject_, name,
              excerpt(value));
    out = value.get<double>();
  }

  template <typename Integer>
  requires std::is_integral_v<Integer>
  void read(const char* name, Integer& out) { out = whole_number<Integer>(name, at(name)); }

  template <typename Integer>
  std::vector<Integer> integers(const char* name) {
    std::vector<Integer> values;
    for (const Json& value : list(name)) {
      values.push_back(whole_number<Integer>(name, value));
    }
    return values;
  }

  // Empty if absent.
  template <typename Value>
  std::vector<Value> optional_list(const char* name,
                                   Value (*parse)(const Json&, const std::string&)) {
    std::vector<Value> values;
    if (json_.contains(name)) {
      for (const Json& value : list(name)) {
        values.push_back(parse(value, fmt::format("{}: {} {}", subject_, name, values.size())));
      }
    }
    return values;
  }

  // Call last: an unknown field may change the meaning of the known ones.
  void done() const {
    KVC_CHECK(read_ == json_.size(), "{}: {} fields, {} are known; written by another version?",
              subject_, json_.size(), read_);
  }

 private:
  template <typename Integer>
  Integer whole_number(const char* name, const Json& value) const {
    const bool fits = value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
                      (!value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <=
                           static_cast<std::uint64_t>(std::numeric_limits<Integer>::max()));
    KVC_CHECK(fits, "{}: \"{}\" must be a whole number from 0 to {}, found {}", subject_, name,
              std::numeric_limits<Integer>::max(), excerpt(value));
    return value.get<Integer>();
  }

  const Json& json_;
  std::string subject_;
  std::size_t read_ = 0;
};

}  // namespace kvc

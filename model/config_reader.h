// Strictly typed reading of one JSON object: an integer is an integer, a switch is true or false,
// and every message names the file, the key, what was expected and what was found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"

namespace kvc {

class ConfigReader {
 public:
  // Both arguments must outlive the reader.
  ConfigReader(const Json& object, const std::string& subject)
      : object_(object), subject_(subject) {}

  const std::string& subject() const { return subject_; }
  bool contains(const char* key) const { return object_.contains(key); }
  const Json* find(const char* key) const;  // nullptr when absent or null

  // Inclusive bounds. Error when absent or null.
  std::int64_t integer(const char* key, std::int64_t min, std::int64_t max) const;
  std::int64_t integer_or(const char* key, std::int64_t fallback, std::int64_t min,
                          std::int64_t max) const;
  std::vector<std::int64_t> integers(
      const char* key) const;            // one integer, a list of them, or none
  double number(const char* key) const;  // integer or fraction, finite
  double number_or(const char* key, double fallback) const;
  std::vector<double> numbers(const char* key) const;  // a list; Error when absent
  // A fraction ("1e-6", "1.0"); a whole number is refused, as transformers does.
  double fraction_or(const char* key, double fallback) const;
  bool boolean_or(const char* key, bool fallback) const;
  std::string text(const char* key) const;
  std::string text_or(const char* key, const std::string& fallback) const;
  std::vector<std::string> texts(const char* key) const;  // empty when absent
  const Json* object(const char* key) const;              // nullptr when absent, null or empty
  std::vector<std::string> keys() const;

 private:
  const Json& required(const char* key) const;
  [[noreturn]] void fail_kind(const char* key, const Json& found,
                              const std::string& expected) const;
  const Json& object_;
  const std::string& subject_;
};

}  // namespace kvc

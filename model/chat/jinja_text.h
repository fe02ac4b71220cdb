// Values as text, as Python's str, repr and json.dumps write them.
#pragma once

#include <optional>
#include <string>

#include "model/chat/jinja_limits.h"
#include "model/chat/jinja_value.h"

namespace kvc::jinja {

std::string to_text(const Value& value, Budget& budget);  // str(); undefined is empty

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;  // of one level; absent: on one line
  std::string item_separator = ", ", key_separator = ": ";
};

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace kvc::jinja

#include "model/chat/jinja_value.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "model/chat/jinja_limits.h"
#include "model/tokenizer/utf8.h"

namespace kvc::jinja {

namespace {

// The shortest digits that read back as the same number, in Python's notation.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const double magnitude = std::fabs(value);
  const bool plain = value == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void append_hex(std::string& text, char32_t code_point) {
  if (code_point < 0x10000) {
    text += fmt::format("\\u{:04x}", static_cast<unsigned>(code_point));
    return;
  }
  const unsigned rest = static_cast<unsigned>(code_point) - 0x10000;
  text += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
}

// As Python has it: no control, format, private or unassigned character, and no blank but the space.
bool is_printable(char32_t value) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return value == ' ';
    default:
      return true;
  }
}

// Inside of a list or dict: quoted with ' unless that would need escapes and " would not.
std::string quoted_text(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string quoted(1, quote);
  for (const Character& character : Characters(text)) {
    const auto value = static_cast<unsigned>(character.value);
    if (value == '\n') {
      quoted += "\\n";
    } else if (value == '\t') {
      quoted += "\\t";
    } else if (value == '\r') {
      quoted += "\\r";
    } else if (is_printable(character.value)) {
      if (value == static_cast<unsigned char>(quote) || value == '\\') quoted += '\\';
      quoted += character.bytes;
    } else if (value < 0x100) {
      quoted += fmt::format("\\x{:02x}", value);
    } else {
      quoted += value < 0x10000 ? fmt::format("\\u{:04x}", value) : fmt::format("\\U{:08x}", value);
    }
  }
  return quoted + quote;
}

std::string json_string(const std::string& text, bool ensure_ascii) {
  std::string json = "\"";
  for (const Character& character : Characters(text)) {
    constexpr std::string_view kPlain = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
    const char32_t value = character.value;
    const auto escape =
        value < 0x80 ? kPlain.find(static_cast<char>(value)) : std::string_view::npos;
    if (escape != std::string_view::npos) {
      json += {'\\', kLetters[escape]};
    } else if (value < 0x20 || (ensure_ascii && value > 0x7E)) {
      append_hex(json, value);
    } else {
      json += character.bytes;
    }
  }
  return json + '"';
}

std::string repr(const Value& value, Budget& budget) {
  budget.step();
  if (const auto* text = value.as<std::string>()) return quoted_text(*text);
  if (const List* list = value.list()) {
    std::string text;
    for (const Value& item : list->items) {
      text += (text.empty() ? "" : ", ") + repr(item, budget);
      budget.bytes(8);
    }
    budget.bytes(text.size());
    if (!list->is_tuple) return "[" + text + "]";
    return list->items.size() == 1 ? "(" + text + ",)" : "(" + text + ")";
  }
  if (const Dict* dict = value.dict()) {
    std::string text;
    for (const auto& [key, item] : dict->entries) {
      text += (text.empty() ? "" : ", ") + repr(key, budget) + ": " + repr(item, budget);
    }
    budget.bytes(text.size());
    return "{" + text + "}";
  }
  return value.is_undefined() ? "Undefined" : to_text(value, budget);
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  std::string write(const Value& value, int level) {
    budget_.step();
    if (value.is_none()) return "null";
    if (const auto* flag = value.as<bool>()) return *flag ? "true" : "false";
    if (const auto* text = value.as<std::string>()) return json_string(*text, style_.ensure_ascii);
    if (const auto* number = value.as<double>()) return number_text(*number);
    if (value.is_number()) return to_text(value, budget_);
    if (value.list() != nullptr) return write_list(*value.list(), level);
    if (value.dict() != nullptr) return write_dict(*value.dict(), level);
    fail("tojson of {} is not possible", value.type_name());
  }

 private:
  static std::string number_text(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return float_text(number);
  }

  std::string write_list(const List& list, int level) {
    std::vector<std::string> items;
    for (const Value& item : list.items) items.push_back(write(item, level + 1));
    return enclose('[', items, ']', level);
  }

  std::string write_dict(const Dict& dict, int level) {
    std::vector<std::pair<std::string, const Value*>> entries;
    for (const auto& [key, value] : dict.entries) {
      entries.emplace_back(to_text(key, budget_), &value);
    }
    if (style_.sort_keys) {
      std::sort(entries.begin(), entries.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    std::vector<std::string> items;
    for (const auto& [key, value] : entries) {
      items.push_back(json_string(key, style_.ensure_ascii) + style_.key_separator +
                      write(*value, level + 1));
    }
    return enclose('{', items, '}', level);
  }

  std::string enclose(char open, const std::vector<std::string>& items, char close, int level) {
    std::string text(1, open);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text += style_.item_separator;
      if (style_.indent) text += line_start(level + 1);
      text += items[i];
    }
    if (style_.indent && !items.empty()) text += line_start(level);
    budget_.bytes(text.size());
    return text + close;
  }

  std::string line_start(int level) {
    budget_.bytes(static_cast<std::size_t>(level) * style_.indent->size() + 1);
    std::string text = "\n";
    for (int i = 0; i < level; ++i) text += *style_.indent;
    return text;
  }

  const JsonStyle& style_;
  Budget& budget_;
};

}  // namespace

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (const auto* text = value.as<std::string>()) {
    budget.bytes(text->size());
    return *text;
  }
  if (const auto* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (const auto* number = value.as<double>()) return float_text(*number);
  if (const auto* number = value.as<std::int64_t>()) return fmt::format("{}", *number);
  KVC_CHECK(value.list() != nullptr || value.dict() != nullptr, "printing a {} is not supported{}",
            value.type_name(), value.generator() != nullptr ? "; make it a list first" : "");
  return repr(value, budget);
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  return JsonWriter(style, budget).write(value, 0);
}

}  // namespace kvc::jinja

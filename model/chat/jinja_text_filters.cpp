// Filters and tests of single values.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/parse_number.h"
#include "model/chat/jinja_builtins.h"
#include "model/chat/jinja_operators.h"
#include "model/chat/jinja_strings.h"
#include "model/chat/jinja_value.h"

namespace kvc::jinja {

namespace {

bool truth_of(const Arguments& arguments, std::size_t index, const char* name) {
  const Value* value = argument(arguments, index, name);
  return value != nullptr && value->truth();
}

template <std::string (*change)(std::string_view)>
Value change_case(Interpreter& interpreter, const Value& value, const Arguments&) {
  return change(interpreter.text(value));
}

// Words begin behind white space and - ( { [ <.
Value title_filter(Interpreter& interpreter, const Value& value, const Arguments&) {
  std::string text = lower(interpreter.text(value));
  bool begins = true;
  for (char& c : text) {
    const bool separates = std::string_view("- \t\n\r\v\f({[<").find(c) != std::string_view::npos;
    if (begins && !separates && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
    begins = separates;
  }
  return text;
}

Value trim(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value* characters = argument(arguments, 0, "chars");
  const bool given = characters != nullptr && !characters->is_none();
  return strip(interpreter.text(value), given ? &characters->string("trim") : nullptr,
               Sides::kBoth);
}

Value replace_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = method(interpreter.text(value), "replace");
  return interpreter.call(*bound, Arguments(arguments));
}

Value default_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const Value* other = argument(arguments, 0, "default_value");
  if (!value.is_undefined() && !(truth_of(arguments, 1, "boolean") && !value.truth())) return value;
  return other == nullptr ? Value("") : *other;
}

Value tojson(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = truth_of(arguments, 0, "ensure_ascii");
  style.sort_keys = truth_of(arguments, 3, "sort_keys");
  const Value* indent = argument(arguments, 1, "indent");
  if (indent != nullptr && !indent->is_none()) {
    const std::int64_t width = indent->is_string() ? 0 : indent->integer("indent");
    KVC_CHECK(width <= 64, "tojson: indent {} is too large", width);
    style.indent =
        indent->is_string()
            ? indent->string("indent")
            : std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    style.item_separator = std::string(1, ',');
  }
  const Value* separators = argument(arguments, 2, "separators");
  if (separators != nullptr && !separators->is_none()) {
    KVC_CHECK(separators->list() != nullptr && separators->list()->items.size() == 2,
              "tojson: separators are two strings");
    style.item_separator = separators->list()->items[0].string("separators");
    style.key_separator = separators->list()->items[1].string("separators");
  }
  return to_json(value, style, interpreter.budget());
}

Value string_filter(Interpreter& interpreter, const Value& value, const Arguments&) {
  return interpreter.text(value);
}

Value safe(Interpreter&, const Value& value, const Arguments&) { return value; }

Value escape(Interpreter& interpreter, const Value& value, const Arguments&) {
  std::string escaped;
  for (const char c : interpreter.text(value)) {
    const std::size_t at = std::string_view("&<>'\"").find(c);
    constexpr const char* kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    escaped += at == std::string_view::npos ? std::string(1, c) : kNames[at];
  }
  interpreter.budget().bytes(escaped.size());
  return escaped;
}

// Without the plus sign that std::from_chars does not take.
std::string number_text(const std::string& text) {
  std::string stripped = strip(text, nullptr, Sides::kBoth);
  if (stripped.starts_with('+') && !stripped.starts_with("+-")) stripped.erase(0, 1);
  return stripped;
}

Value int_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const Value* absent = argument(arguments, 0, "default");
  KVC_CHECK(!value.is_undefined(), "int of what is not defined");
  KVC_CHECK(argument(arguments, 1, "base") == nullptr, "int with a base is not supported");
  if (const auto* number = value.as<double>()) {
    if (std::fabs(*number) < 9e18) return static_cast<std::int64_t>(*number);
  } else if (value.is_number()) {
    return value.integer("int");
  } else if (value.is_string()) {
    const std::string text = number_text(value.string("int"));
    std::int64_t integer = 0;
    double real = 0;
    if (parse_number(text, integer)) return integer;
    if (parse_number(text, real) && std::isfinite(real)) {
      KVC_CHECK(std::fabs(real) < 9e18, "int of {} does not fit in 64 bits", text);
      return static_cast<std::int64_t>(real);
    }
  }
  return absent == nullptr ? Value(std::int64_t{0}) : *absent;
}

Value float_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const Value* absent = argument(arguments, 0, "default");
  KVC_CHECK(!value.is_undefined(), "float of what is not defined");
  if (value.is_number()) return value.number();
  if (value.is_string()) {
    double number = 0;
    if (parse_number(number_text(value.string("float")), number)) return number;
  }
  return absent == nullptr ? Value(0.0) : *absent;
}

Value abs_filter(Interpreter&, const Value& value, const Arguments&) {
  KVC_CHECK(value.is_number(), "abs of {} is not possible", value.type_name());
  if (value.as<double>() != nullptr) return std::fabs(value.number());
  return value.number() < 0 ? negate(value) : value;
}

Value round_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const Value *precision = argument(arguments, 0, "precision"),
              *kind = argument(arguments, 1, "method");
  KVC_CHECK(value.is_number(), "round of {} is not possible", value.type_name());
  const std::int64_t digits = precision == nullptr ? 0 : precision->integer("round");
  KVC_CHECK(digits == 0, "round to {} digits is not supported", digits);
  const std::string name = kind == nullptr ? "common" : kind->string("round");
  if (name == "common" && value.as<double>() == nullptr) return value;
  if (name == "ceil") return std::ceil(value.number());
  return name == "floor" ? std::floor(value.number()) : std::nearbyint(value.number());
}

// Lines behind the first are moved to the right; empty ones only if `blank`.
Value indent(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value* width = argument(arguments, 0, "width");
  std::string space = "    ";
  if (width != nullptr && width->is_string()) {
    space = width->string("indent");
  } else if (width != nullptr) {
    const std::int64_t count = width->integer("indent");
    KVC_CHECK(count <= 1000, "indent: width {} is too large", count);
    space.assign(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), ' ');
  }
  const bool blank = truth_of(arguments, 2, "blank");
  std::string text = truth_of(arguments, 1, "first") ? space : "";
  bool is_first = true;
  const std::string lines = interpreter.text(value) + "\n";
  interpreter.budget().bytes(count_spaces(lines) * sizeof(std::string));
  for (const std::string& line : split_lines(lines)) {
    if (!is_first) text += line.empty() && !blank ? "\n" : "\n" + space;
    text += line;
    interpreter.budget().bytes(space.size() + line.size());
    is_first = false;
  }
  return text;
}

}  // namespace

Filter find_text_filter(const std::string& name) {
  static const std::map<std::string, Filter> kFilters = {{"upper", change_case<upper>},
                                                         {"lower", change_case<lower>},
                                                         {"capitalize", change_case<capitalize>},
                                                         {"title", title_filter},
                                                         {"trim", trim},
                                                         {"replace", replace_filter},
                                                         {"default", default_filter},
                                                         {"d", default_filter},
                                                         {"tojson", tojson},
                                                         {"string", string_filter},
                                                         {"safe", safe},
                                                         {"escape", escape},
                                                         {"e", escape},
                                                         {"int", int_filter},
                                                         {"float", float_filter},
                                                         {"abs", abs_filter},
                                                         {"round", round_filter},
                                                         {"indent", indent}};
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace kvc::jinja

// Methods of strings, lists and dicts.
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "model/chat/jinja_builtins.h"
#include "model/chat/jinja_operators.h"
#include "model/chat/jinja_strings.h"

namespace kvc::jinja {

namespace {

using Method = Value (*)(Interpreter&, const Value& self, const Arguments& arguments);
struct MethodRow {
  std::string_view name;
  Method call;
};

constexpr std::array<std::string_view, 14> kChanging = {
    "append", "extend", "insert",  "pop",        "popitem", "remove",  "clear",
    "update", "sort",   "reverse", "setdefault", "add",     "discard", "__setitem__"};
constexpr std::array<std::string_view, 19> kMissing = {
    "format_map", "zfill",     "center",    "ljust",       "rjust",      "encode",  "translate",
    "casefold",   "swapcase",  "partition", "rpartition",  "expandtabs", "isalnum", "isidentifier",
    "isnumeric",  "isdecimal", "istitle",   "isprintable", "maketrans"};

const std::string& text_of(const Value& self) { return self.string("a method"); }

const std::string* optional_text(const Arguments& arguments, std::size_t index, const char* name) {
  const Value* value = argument(arguments, index, name);
  return value == nullptr || value->is_none() ? nullptr : &value->string(name);
}

std::int64_t count_or_all(const Arguments& arguments, std::size_t index, const char* name) {
  const Value* value = argument(arguments, index, name);
  return value == nullptr ? -1 : value->integer(name);
}

const std::string& required_text(const Arguments& arguments, std::size_t index, const char* name) {
  const std::string* text = optional_text(arguments, index, name);
  KVC_CHECK(text != nullptr, "a string method lacks its argument '{}'", name);
  return *text;
}

constexpr std::size_t kTextBytes =
    sizeof(Value) + 2 * sizeof(std::string);  // of an item, besides its characters

// Counts the texts' characters; the caller counts the items.
Value strings(Interpreter& interpreter, std::vector<std::string> texts) {
  std::vector<Value> items;
  for (std::string& text : texts) {
    interpreter.budget().bytes(text.size());
    items.emplace_back(std::move(text));
  }
  return Value::list(std::move(items));
}

template <Sides sides>
Value strip_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  interpreter.budget().bytes(text_of(self).size());
  return strip(text_of(self), optional_text(arguments, 0, "chars"), sides);
}

template <std::string (*change)(std::string_view)>
Value case_method(Interpreter& interpreter, const Value& self, const Arguments&) {
  interpreter.budget().bytes(text_of(self).size());
  return change(text_of(self));
}

template <bool from_right>
Value split_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string* separator = optional_text(arguments, 0, "sep");
  const std::int64_t count = count_or_all(arguments, 1, "maxsplit");
  const std::string& text = text_of(self);
  KVC_CHECK(separator == nullptr || !separator->empty(),
            "split at an empty string is not possible");
  // Before the parts are made: they could be many.
  std::size_t cuts = separator == nullptr ? count_spaces(text) : count_of(text, *separator);
  cuts = count < 0 ? cuts : std::min(cuts, static_cast<std::size_t>(count));
  interpreter.budget().bytes(cuts * kTextBytes);
  if (separator == nullptr) {
    return strings(interpreter, split_at_space(text, count, from_right));
  }
  return strings(interpreter, split(text, *separator, count, from_right));
}

// `test` of the one text or any of a tuple of texts.
template <bool at_end>
Value affix_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Value* given = argument(arguments, 0, "prefix");
  KVC_CHECK(given != nullptr && arguments.positional.size() == 1,
            "startswith and endswith take one argument");
  const std::string& text = text_of(self);
  const auto holds = [&](const Value& affix) {
    const std::string& part = affix.string("startswith");
    return at_end ? text.ends_with(part) : text.starts_with(part);
  };
  if (given->list() == nullptr) return holds(*given);
  return std::any_of(given->list()->items.begin(), given->list()->items.end(), holds);
}

template <bool at_end>
Value remove_affix(Interpreter&, const Value& self, const Arguments& arguments) {
  const std::string &text = text_of(self), &part = required_text(arguments, 0, "prefix");
  if (at_end) {
    return text.ends_with(part) ? text.substr(0, text.size() - part.size()) : text;
  }
  return text.starts_with(part) ? text.substr(part.size()) : text;
}

Value replace_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string &from = required_text(arguments, 0, "old"),
                    &to = required_text(arguments, 1, "new");
  const std::string& text = text_of(self);
  // Before the text is made: it could be huge.
  interpreter.budget().bytes(text.size() +
                             (text.size() / std::max<std::size_t>(from.size(), 1) + 1) * to.size());
  return replace(text, from, to, count_or_all(arguments, 2, "count"));
}

template <bool from_right>
Value find_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string &text = text_of(self), &part = required_text(arguments, 0, "sub");
  KVC_CHECK(arguments.positional.size() == 1, "find with a beginning is not supported");
  interpreter.budget().scan(text.size() + part.size());
  const std::size_t at = from_right ? find_last_text(text, part) : find_text(text, part);
  return at == std::string::npos ? std::int64_t{-1} : length(text.substr(0, at));
}

Value count_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string &text = text_of(self), &part = required_text(arguments, 0, "sub");
  if (part.empty()) return length(self) + 1;
  interpreter.budget().scan(text.size() + part.size());
  return static_cast<std::int64_t>(count_of(text, part));
}

Value join_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* items = argument(arguments, 0, "iterable");
  KVC_CHECK(items != nullptr, "join lacks its argument");
  std::string text;
  bool first = true;
  for (const Value& one : members(*items, interpreter.budget())) {
    text += (first ? "" : text_of(self)) + one.string("join");
    interpreter.budget().bytes(text_of(self).size() + one.string("join").size());
    first = false;
  }
  return text;
}

Value lines_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* keep = argument(arguments, 0, "keepends");
  interpreter.budget().bytes(count_spaces(text_of(self)) * kTextBytes);
  return strings(interpreter, split_lines(text_of(self), keep != nullptr && keep->truth()));
}

// Fields without conversions: {}, {0} and {name}.
Value format_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string& text = text_of(self);
  std::string formatted;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool doubled = at + 1 < text.size() && text[at] == text[at + 1];
    if (text[at] != '{' && text[at] != '}') {
      formatted += text[at];
    } else if (doubled) {
      formatted += text[at++];
    } else {
      const std::size_t end = text.find('}', at);
      KVC_CHECK(text[at] == '{' && end != std::string::npos, "format: a brace has no partner");
      const std::string field = text.substr(at + 1, end - at - 1);
      const bool is_number = field.size() < 4 && std::all_of(field.begin(), field.end(), is_digit);
      const std::size_t index = field.empty() ? next++ : is_number ? std::stoul(field) : 0;
      const Value* value = argument(arguments, is_number ? index : ~std::size_t{0}, field.c_str());
      KVC_CHECK(value != nullptr, "format: the field {{{}}} is not given or not supported", field);
      formatted += interpreter.text(*value);
      at = end;
    }
  }
  interpreter.budget().bytes(formatted.size());
  return formatted;
}

template <bool (*holds)(char)>
Value all_method(Interpreter&, const Value& self, const Arguments&) {
  const std::string& text = text_of(self);
  KVC_CHECK(std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; }),
            "isdigit and the like are supported for ASCII only");
  return !text.empty() && std::all_of(text.begin(), text.end(), holds);
}

bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F); }

template <char from, char to>
Value case_test(Interpreter&, const Value& self, const Arguments&) {
  const std::string& text = text_of(self);
  const bool any = std::any_of(text.begin(), text.end(), is_alpha);
  return any && std::all_of(text.begin(), text.end(),
                            [](char c) { return !is_alpha(c) || (c >= from && c <= to); });
}

constexpr MethodRow kStringMethods[] = {{"strip", strip_method<Sides::kBoth>},
                                        {"lstrip", strip_method<Sides::kLeft>},
                                        {"rstrip", strip_method<Sides::kRight>},
                                        {"upper", case_method<upper>},
                                        {"lower", case_method<lower>},
                                        {"capitalize", case_method<capitalize>},
                                        {"title", case_method<title>},
                                        {"split", split_method<false>},
                                        {"rsplit", split_method<true>},
                                        {"startswith", affix_method<false>},
                                        {"endswith", affix_method<true>},
                                        {"removeprefix", remove_affix<false>},
                                        {"removesuffix", remove_affix<true>},
                                        {"replace", replace_method},
                                        {"find", find_method<false>},
                                        {"rfind", find_method<true>},
                                        {"count", count_method},
                                        {"join", join_method},
                                        {"splitlines", lines_method},
                                        {"format", format_method},
                                        {"isdigit", all_method<is_digit>},
                                        {"isalpha", all_method<is_alpha>},
                                        {"isspace", all_method<is_blank>},
                                        {"islower", case_test<'a', 'z'>},
                                        {"isupper", case_test<'A', 'Z'>}};

Value items_of(Interpreter& interpreter, const Value& self, const Arguments&) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->entries) {
    items.push_back(Value::list({key, value}, true));
  }
  interpreter.budget().bytes(items.size() * 3 * sizeof(Value));
  return Value::list(std::move(items));
}

Value keys_of(Interpreter& interpreter, const Value& self, const Arguments&) {
  return Value::list(members(self, interpreter.budget()));
}

Value values_of(Interpreter& interpreter, const Value& self, const Arguments&) {
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict()->entries) values.push_back(value);
  interpreter.budget().bytes(values.size() * sizeof(Value));
  return Value::list(std::move(values));
}

Value get_of(Interpreter&, const Value& self, const Arguments& arguments) {
  const Value *key = argument(arguments, 0, "key"), *absent = argument(arguments, 1, "default");
  KVC_CHECK(key != nullptr, "get lacks its key");
  const Value* found = self.dict()->find(*key);
  if (found != nullptr) return *found;
  return absent == nullptr ? Value::none() : *absent;
}

Value same(Interpreter&, const Value& self, const Arguments&) { return self; }

constexpr MethodRow kDictMethods[] = {
    {"items", items_of}, {"keys", keys_of}, {"values", values_of}, {"get", get_of}, {"copy", same}};

Value list_index(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* wanted = argument(arguments, 0, "value");
  const std::vector<Value>& items = self.list()->items;
  for (std::size_t i = 0; wanted != nullptr && i < items.size(); ++i) {
    if (equal(items[i], *wanted, interpreter.budget())) return static_cast<std::int64_t>(i);
  }
  fail("index: the list does not hold the value");
}

Value list_count(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* wanted = argument(arguments, 0, "value");
  KVC_CHECK(wanted != nullptr, "count lacks its argument");
  const std::vector<Value>& items = self.list()->items;
  return static_cast<std::int64_t>(std::count_if(items.begin(), items.end(), [&](const Value& one) {
    return equal(one, *wanted, interpreter.budget());
  }));
}

constexpr MethodRow kListMethods[] = {{"index", list_index}, {"count", list_count}, {"copy", same}};

template <std::size_t size>
const MethodRow* find_row(const MethodRow (&rows)[size], std::string_view name) {
  const auto found =
      std::find_if(rows, rows + size, [&](const MethodRow& row) { return row.name == name; });
  return found == rows + size ? nullptr : found;
}

}  // namespace

std::optional<Value> method(const Value& value, const std::string& name) {
  const MethodRow* row = nullptr;
  if (value.is_string()) row = find_row(kStringMethods, name);
  if (value.list() != nullptr) row = find_row(kListMethods, name);
  if (value.dict() != nullptr) row = find_row(kDictMethods, name);
  if (row != nullptr) {
    return Value::callable(name, [value, row](Interpreter& interpreter, Arguments&& arguments) {
      if (value.is_string()) interpreter.budget().scan(text_of(value).size());
      return row->call(interpreter, value, arguments);
    });
  }
  const auto is_in = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const bool holds_others = value.list() != nullptr || value.dict() != nullptr;
  const bool is_key = value.dict() != nullptr && value.dict()->find(name) != nullptr;
  KVC_CHECK(!holds_others || is_key || !is_in(kChanging),
            "'{}' would change a {}, which templates cannot", name, value.type_name());
  KVC_CHECK(!value.is_string() || !is_in(kMissing), "the string method '{}' is not supported",
            name);
  return std::nullopt;
}

}  // namespace kvc::jinja

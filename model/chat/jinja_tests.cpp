// Tests: what stands behind "is".
#include <algorithm>

#include "core/error.h"
#include "model/chat/jinja_builtins.h"
#include "model/chat/jinja_operators.h"

namespace kvc::jinja {

namespace {

template <bool (Value::*holds)() const>
bool member_test(Interpreter&, const Value& value, const Arguments&) {
  return (value.*holds)();
}

template <typename T>
bool type_test(Interpreter&, const Value& value, const Arguments&) {
  return value.as<T>() != nullptr;
}

bool is_defined(Interpreter&, const Value& value, const Arguments&) {
  return !value.is_undefined();
}

bool is_mapping(Interpreter&, const Value& value, const Arguments&) {
  return value.dict() != nullptr;
}

// As in Jinja2, what is missing can be gone through, and claims to be callable.
bool is_sequence(Interpreter&, const Value& value, const Arguments&) {
  return value.is_string() || value.list() != nullptr || value.dict() != nullptr ||
         value.is_undefined();
}

bool is_iterable(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  return is_sequence(interpreter, value, arguments) || value.generator() != nullptr;
}

bool is_callable(Interpreter&, const Value& value, const Arguments&) {
  return value.callable() != nullptr || value.is_undefined();
}

template <bool wanted>
bool is_flag(Interpreter&, const Value& value, const Arguments&) {
  return value.as<bool>() != nullptr && *value.as<bool>() == wanted;
}

template <char op>
bool comparison(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value* other = argument(arguments, 0, "other");
  KVC_CHECK(other != nullptr, "a test lacks what it compares with");
  constexpr const char* kOperator = op == '='   ? "=="
                                    : op == '!' ? "!="
                                    : op == '<' ? "<"
                                    : op == '>' ? ">"
                                    : op == 'l' ? "<="
                                    : op == 'g' ? ">="
                                                : "in";
  return compare(kOperator, value, *other, interpreter.budget());
}

template <std::int64_t rest>
bool parity(Interpreter&, const Value& value, const Arguments&) {
  return (value.integer("odd and even") & 1) == rest;
}

bool divisible(Interpreter&, const Value& value, const Arguments& arguments) {
  const Value* by = argument(arguments, 0, "num");
  KVC_CHECK(by != nullptr && by->integer("divisibleby") != 0, "divisibleby lacks its number");
  const std::int64_t number = by->integer("divisibleby");
  return number == -1 || value.integer("divisibleby") % number == 0;
}

template <bool (*differs)(char)>
bool has_case(Interpreter& interpreter, const Value& value, const Arguments&) {
  const std::string text = interpreter.text(value);
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return std::any_of(text.begin(), text.end(), is_letter) &&
         std::none_of(text.begin(), text.end(), differs);
}

bool is_large(char c) { return c >= 'A' && c <= 'Z'; }
bool is_small(char c) { return c >= 'a' && c <= 'z'; }

bool same_as(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value* other = argument(arguments, 0, "other");
  KVC_CHECK(other != nullptr, "sameas lacks its argument");
  return std::string_view(value.type_name()) == other->type_name() &&
         equal(value, *other, interpreter.budget());
}

}  // namespace

Test find_test(const std::string& name) {
  static const std::map<std::string, Test> kTests = {
      {"defined", is_defined},
      {"undefined", member_test<&Value::is_undefined>},
      {"none", member_test<&Value::is_none>},
      {"string", member_test<&Value::is_string>},
      {"number", member_test<&Value::is_number>},
      {"integer", type_test<std::int64_t>},
      {"float", type_test<double>},
      {"boolean", type_test<bool>},
      {"mapping", is_mapping},
      {"iterable", is_iterable},
      {"sequence", is_sequence},
      {"callable", is_callable},
      {"true", is_flag<true>},
      {"false", is_flag<false>},
      {"equalto", comparison<'='>},
      {"eq", comparison<'='>},
      {"ne", comparison<'!'>},
      {"lt", comparison<'<'>},
      {"lessthan", comparison<'<'>},
      {"gt", comparison<'>'>},
      {"greaterthan", comparison<'>'>},
      {"le", comparison<'l'>},
      {"ge", comparison<'g'>},
      {"in", comparison<'i'>},
      {"==", comparison<'='>},
      {"!=", comparison<'!'>},
      {"<", comparison<'<'>},
      {">", comparison<'>'>},
      {"<=", comparison<'l'>},
      {">=", comparison<'g'>},
      {"odd", parity<1>},
      {"even", parity<0>},
      {"divisibleby", divisible},
      {"lower", has_case<is_large>},
      {"upper", has_case<is_small>},
      {"sameas", same_as}};
  const auto found = kTests.find(name);
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace kvc::jinja

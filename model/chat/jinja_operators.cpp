#include "model/chat/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "model/chat/jinja_strings.h"
#include "model/chat/jinja_value.h"

namespace kvc::jinja {

namespace {

[[noreturn]] void refuse(std::string_view op, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (const auto* missing = value->as<Undefined>()) fail("'{}' is not defined", missing->name);
  }
  fail("operator {} between {} and {} is not possible", op, left.type_name(), right.type_name());
}

bool is_integer(const Value& value) { return value.is_number() && value.as<double>() == nullptr; }

using Overflows = bool (*)(std::int64_t, std::int64_t, std::int64_t*);

std::int64_t checked(Overflows overflows, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  const bool overflow = overflows(left, right, &result);
  KVC_CHECK(!overflow, "an integer leaves 64 bits");
  return result;
}

bool add(std::int64_t left, std::int64_t right, std::int64_t* result) {
  return __builtin_add_overflow(left, right, result);
}
bool subtract(std::int64_t left, std::int64_t right, std::int64_t* result) {
  return __builtin_sub_overflow(left, right, result);
}
bool multiply(std::int64_t left, std::int64_t right, std::int64_t* result) {
  return __builtin_mul_overflow(left, right, result);
}

// `right` is not negative.
std::int64_t integer_power(std::int64_t left, std::int64_t right) {
  if (left == 0 || left == 1) return right == 0 ? 1 : left;
  if (left == -1) return right % 2 == 0 ? 1 : -1;
  std::int64_t result = 1;
  for (std::int64_t i = 0; i < right; ++i) result = checked(multiply, result, left);
  return result;
}

std::int64_t floor_divide(std::int64_t left, std::int64_t right) {
  KVC_CHECK(right != 0, "division by zero");
  KVC_CHECK(left != std::numeric_limits<std::int64_t>::min() || right != -1,
            "an integer leaves 64 bits");
  const std::int64_t quotient = left / right;
  return quotient - ((left % right != 0) && ((left < 0) != (right < 0)) ? 1 : 0);
}

// Undefined where the result is no integer.
Value integer_arithmetic(std::string_view op, std::int64_t left, std::int64_t right) {
  if (op == "+") return checked(add, left, right);
  if (op == "-") return checked(subtract, left, right);
  if (op == "*") return checked(multiply, left, right);
  if (op == "//") return floor_divide(left, right);
  if (op == "%") return left - floor_divide(left, right) * right;
  return op == "**" && right >= 0 ? Value(integer_power(left, right)) : Value();
}

Value float_arithmetic(std::string_view op, double left, double right) {
  if (op == "+") return left + right;
  if (op == "-") return left - right;
  if (op == "*") return left * right;
  if (op == "**") return std::pow(left, right);
  KVC_CHECK(right != 0, "division by zero");
  if (op == "/") return left / right;
  if (op == "//") return std::floor(left / right);
  const double rest = std::fmod(left, right);
  return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
}

Value repeat(const Value& value, std::int64_t count, Budget& budget) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  KVC_CHECK(times <= static_cast<std::size_t>(Budget::kMaxBytes), "{} repetitions are too many",
            times);
  if (const auto* text = value.as<std::string>()) {
    budget.bytes(text->size() * times);
    std::string repeated;
    for (std::size_t i = 0; i < times && !text->empty(); ++i) repeated += *text;
    return repeated;
  }
  const std::vector<Value>& items = value.list()->items;
  budget.bytes(items.size() * times * sizeof(Value));
  std::vector<Value> repeated;
  for (std::size_t i = 0; i < times && !items.empty(); ++i) {
    repeated.insert(repeated.end(), items.begin(), items.end());
  }
  return Value::list(std::move(repeated), value.list()->is_tuple);
}

Value concatenate_lists(const List& left, const List& right, Budget& budget) {
  budget.bytes((left.items.size() + right.items.size()) * sizeof(Value));
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return Value::list(std::move(items), left.is_tuple);
}

bool contains(const Value& container, const Value& value, Budget& budget) {
  if (const auto* text = container.as<std::string>()) {
    if (!value.is_string()) refuse("in", value, container);
    budget.scan(text->size());
    return find_text(*text, value.string("in")) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    return dict->find(value) != nullptr;
  }
  if (container.is_undefined()) return false;
  if (Generator* left = container.generator()) {  // what comes before the match is gone, too
    while (left->next < left->items.size()) {
      if (equal(left->items[left->next++], value, budget)) return true;
    }
    return false;
  }
  if (container.list() == nullptr) refuse("in", value, container);
  const auto& items = container.list()->items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(item, value, budget); });
}

}  // namespace

Value negate(const Value& value) {
  if (const auto* number = value.as<double>()) return -*number;
  return integer_arithmetic("-", 0, value.integer("a sign"));
}

Value arithmetic(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  if (op == "~") return to_text(left, budget) + to_text(right, budget);
  if (left.is_number() && right.is_number()) {
    if (is_integer(left) && is_integer(right) && op != "/") {
      const Value result = integer_arithmetic(op, left.integer("+"), right.integer("+"));
      if (!result.is_undefined()) return result;
    }
    return float_arithmetic(op, left.number(), right.number());
  }
  if (op == "+" && left.is_string() && right.is_string()) {
    const std::string &a = left.string("+"), &b = right.string("+");
    budget.bytes(a.size() + b.size());
    return a + b;
  }
  if (op == "+" && left.list() != nullptr && right.list() != nullptr &&
      left.list()->is_tuple == right.list()->is_tuple) {
    return concatenate_lists(*left.list(), *right.list(), budget);
  }
  const auto repeats = [](const Value& value) {
    return value.is_string() || value.list() != nullptr;
  };
  if (op == "*" && repeats(left) && is_integer(right)) {
    return repeat(left, right.integer("*"), budget);
  }
  if (op == "*" && repeats(right) && is_integer(left)) {
    return repeat(right, left.integer("*"), budget);
  }
  refuse(op, left, right);
}

bool equal(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  if (left.is_number() && right.is_number()) {
    if (is_integer(left) && is_integer(right)) return left.integer("==") == right.integer("==");
    return left.number() == right.number();
  }
  if (left.is_string() && right.is_string()) {
    const std::string &a = left.string("=="), &b = right.string("==");
    if (a.size() == b.size()) budget.scan(a.size());
    return a == b;
  }
  if (left.list() != nullptr && right.list() != nullptr) {
    const List &a = *left.list(), &b = *right.list();
    return a.is_tuple == b.is_tuple &&
           std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                      [&](const Value& x, const Value& y) { return equal(x, y, budget); });
  }
  if (left.dict() != nullptr && right.dict() != nullptr) {
    const Dict &a = *left.dict(), &b = *right.dict();
    if (a.entries.size() != b.entries.size()) return false;
    return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
      const Value* other = b.find(entry.first);
      return other != nullptr && equal(entry.second, *other, budget);
    });
  }
  if (left.name_space() != nullptr) return left.name_space() == right.name_space();
  if (left.generator() != nullptr) return left.generator() == right.generator();
  if (left.callable() != nullptr) return left.callable() == right.callable();
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

bool less(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  if (left.is_number() && right.is_number()) {
    if (is_integer(left) && is_integer(right)) return left.integer("<") < right.integer("<");
    return left.number() < right.number();
  }
  if (left.is_string() && right.is_string()) return left.string("<") < right.string("<");
  if (left.list() == nullptr || right.list() == nullptr) refuse("<", left, right);
  const std::vector<Value>&a = left.list()->items, &b = right.list()->items;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!equal(a[i], b[i], budget)) return less(a[i], b[i], budget);
  }
  return a.size() < b.size();
}

bool compare(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  if (op == "==") return equal(left, right, budget);
  if (op == "!=") return !equal(left, right, budget);
  if (op == "in") return contains(right, left, budget);
  if (op == "not in") return !contains(right, left, budget);
  if (op == "<") return less(left, right, budget);
  if (op == ">") return less(right, left, budget);
  if (op == "<=") return less(left, right, budget) || equal(left, right, budget);
  return less(right, left, budget) || equal(left, right, budget);
}

}  // namespace kvc::jinja

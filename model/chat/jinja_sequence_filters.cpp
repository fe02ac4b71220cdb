// Filters of lists and dicts.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/chat/jinja_builtins.h"
#include "model/chat/jinja_operators.h"
#include "model/chat/jinja_strings.h"

namespace kvc::jinja {

namespace {

const Value* named(const Arguments& arguments, const char* name) {
  return argument(arguments, arguments.positional.size(), name);
}

// The attribute that `path` names, parts separated by dots; numbers are indices.
Value attribute_path(const Value& value, const Value& path) {
  if (!path.is_string()) return item(value, path);
  Value at = value;
  for (const std::string& part : split(path.string("attribute"), ".", -1, false)) {
    const bool is_index = !part.empty() && part.size() < 10 &&
                          part.find_first_not_of("0123456789") == std::string::npos;
    at = is_index ? item(at, std::int64_t{std::stoll(part)}) : item(at, part);
  }
  return at;
}

// Value to sort or compare by: an attribute, small letters unless `case_sensitive`.
Value key_of(const Value& value, const Value* attribute, bool case_sensitive) {
  Value key =
      attribute == nullptr || attribute->is_none() ? value : attribute_path(value, *attribute);
  if (key.is_string() && !case_sensitive) return lower(key.string("a key"));
  return key;
}

bool truth_of(const Value* value) { return value != nullptr && value->truth(); }

Value first(Interpreter& interpreter, const Value& value, const Arguments&) {
  if (Generator* left = value.generator(); left != nullptr && left->next < left->items.size()) {
    return left->items[left->next++];
  }
  const auto items = members(value, interpreter.budget());
  return items.empty() ? Value::undefined("the first item") : items.front();
}

Value last(Interpreter& interpreter, const Value& value, const Arguments&) {
  KVC_CHECK(value.generator() == nullptr, "a generator has no last item; make it a list first");
  const auto items = members(value, interpreter.budget());
  return items.empty() ? Value::undefined("the last item") : items.back();
}

Value length_filter(Interpreter&, const Value& value, const Arguments&) { return length(value); }

Value list_filter(Interpreter& interpreter, const Value& value, const Arguments&) {
  return Value::list(members(value, interpreter.budget()));
}

Value reverse(Interpreter& interpreter, const Value& value, const Arguments&) {
  std::vector<Value> items = members(value, interpreter.budget());
  std::reverse(items.begin(), items.end());
  if (value.generator() != nullptr) return Value::list(std::move(items));
  if (!value.is_string()) return Value::generator(std::move(items));
  std::string text;
  for (const Value& one : items) text += one.string("reverse");
  return text;
}

Value join(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value *separator = argument(arguments, 0, "d"), *by = argument(arguments, 1, "attribute");
  const std::string between = separator == nullptr ? "" : interpreter.text(*separator);
  std::string text;
  bool is_first = true;
  for (const Value& one : members(value, interpreter.budget())) {
    if (!is_first) text += between;
    text += interpreter.text(by == nullptr ? one : attribute_path(one, *by));
    interpreter.budget().bytes(between.size());
    is_first = false;
  }
  return text;
}

// As Jinja2's map and select: nothing of any value that is false.
std::vector<Value> members_if_true(const Value& value, Interpreter& interpreter) {
  return value.truth() ? members(value, interpreter.budget()) : std::vector<Value>();
}

Value map_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value *by = named(arguments, "attribute"), *absent = named(arguments, "default");
  KVC_CHECK(by != nullptr || !arguments.positional.empty(),
            "map takes the name of a filter, or attribute=");
  std::vector<Value> mapped;
  for (Value& one : members_if_true(value, interpreter)) {
    if (by != nullptr) {
      Value found = attribute_path(one, *by);
      mapped.push_back(found.is_undefined() && absent != nullptr ? *absent : std::move(found));
      continue;
    }
    Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
    mapped.push_back(
        interpreter.filter(arguments.positional[0].string("map"), std::move(one), std::move(rest)));
  }
  return Value::generator(std::move(mapped));
}

// Keeps what passes a test, or with `wanted` false what does not; without a test, what is true.
Value selected(Interpreter& interpreter, const Value& value, const Arguments& arguments,
               bool by_attribute, bool wanted) {
  const auto& given = arguments.positional;
  const std::size_t test_at = by_attribute ? 1 : 0;
  KVC_CHECK(given.size() >= test_at, "selectattr and rejectattr take an attribute");
  Arguments rest;
  if (given.size() > test_at) {
    rest.positional.assign(given.begin() + static_cast<std::ptrdiff_t>(test_at) + 1, given.end());
  }
  std::vector<Value> kept;
  for (const Value& one : members_if_true(value, interpreter)) {
    const Value subject = by_attribute ? attribute_path(one, given[0]) : one;
    const bool holds = given.size() > test_at
                           ? interpreter.test(given[test_at].string("select"), subject, rest)
                           : subject.truth();
    if (holds == wanted) kept.push_back(one);
  }
  return Value::generator(std::move(kept));
}

template <bool by_attribute, bool wanted>
Value select_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  return selected(interpreter, value, arguments, by_attribute, wanted);
}

std::vector<Value> sorted(std::vector<Value> items, const std::vector<Value>& keys, bool backwards,
                          Budget& budget) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return backwards ? less(keys[b], keys[a], budget) : less(keys[a], keys[b], budget);
  });
  std::vector<Value> result;
  for (const std::size_t i : order) result.push_back(std::move(items[i]));
  return result;
}

Value sort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  std::vector<Value> items = members(value, interpreter.budget()), keys;
  const Value* by = argument(arguments, 2, "attribute");
  const bool case_sensitive = truth_of(argument(arguments, 1, "case_sensitive"));
  for (const Value& one : items) keys.push_back(key_of(one, by, case_sensitive));
  return Value::list(sorted(std::move(items), keys, truth_of(argument(arguments, 0, "reverse")),
                            interpreter.budget()));
}

Value items_filter(Interpreter& interpreter, const Value& value, const Arguments&) {
  if (value.is_undefined()) return Value::generator({});
  KVC_CHECK(value.dict() != nullptr, "items of {} is not possible", value.type_name());
  return Value::generator(interpreter.call(*method(value, "items"), {}).list()->items);
}

Value dictsort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  KVC_CHECK(value.dict() != nullptr, "dictsort of {} is not possible", value.type_name());
  const Value* by = argument(arguments, 1, "by");
  const std::int64_t part = by != nullptr && by->string("dictsort") == "value" ? 1 : 0;
  const bool case_sensitive = truth_of(argument(arguments, 0, "case_sensitive"));
  std::vector<Value> items = items_filter(interpreter, value, {}).generator()->items, keys;
  const Value part_value(part);
  for (const Value& one : items) keys.push_back(key_of(one, &part_value, case_sensitive));
  return Value::list(sorted(std::move(items), keys, truth_of(argument(arguments, 2, "reverse")),
                            interpreter.budget()));
}

Value unique(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value* by = argument(arguments, 1, "attribute");
  const bool case_sensitive = truth_of(argument(arguments, 0, "case_sensitive"));
  std::vector<Value> kept, keys;
  for (const Value& one : members(value, interpreter.budget())) {
    const Value key = key_of(one, by, case_sensitive);
    const bool seen = std::any_of(keys.begin(), keys.end(), [&](const Value& other) {
      return equal(other, key, interpreter.budget());
    });
    if (seen) continue;
    keys.push_back(key);
    kept.push_back(one);
  }
  return Value::generator(std::move(kept));
}

Value sum(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value *by = argument(arguments, 0, "attribute"), *start = argument(arguments, 1, "start");
  Value total = start == nullptr ? Value(std::int64_t{0}) : *start;
  for (const Value& one : members(value, interpreter.budget())) {
    total = arithmetic("+", total, by == nullptr ? one : attribute_path(one, *by),
                       interpreter.budget());
  }
  return total;
}

template <bool largest>
Value extreme(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value* by = argument(arguments, 1, "attribute");
  Value best = Value::undefined("the extreme of nothing"), best_key;
  for (const Value& one : members(value, interpreter.budget())) {
    const Value key = key_of(one, by, truth_of(argument(arguments, 0, "case_sensitive")));
    const bool better =
        best.is_undefined() || (largest ? less(best_key, key, interpreter.budget())
                                        : less(key, best_key, interpreter.budget()));
    if (better) best = one, best_key = key;
  }
  return best;
}

}  // namespace

Filter find_sequence_filter(const std::string& name) {
  static const std::map<std::string, Filter> kFilters = {{"first", first},
                                                         {"last", last},
                                                         {"length", length_filter},
                                                         {"count", length_filter},
                                                         {"list", list_filter},
                                                         {"reverse", reverse},
                                                         {"join", join},
                                                         {"map", map_filter},
                                                         {"select", select_filter<false, true>},
                                                         {"reject", select_filter<false, false>},
                                                         {"selectattr", select_filter<true, true>},
                                                         {"rejectattr", select_filter<true, false>},
                                                         {"sort", sort},
                                                         {"items", items_filter},
                                                         {"dictsort", dictsort},
                                                         {"unique", unique},
                                                         {"sum", sum},
                                                         {"min", extreme<false>},
                                                         {"max", extreme<true>}};
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace kvc::jinja

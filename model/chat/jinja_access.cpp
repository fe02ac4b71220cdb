// Attributes, items, slices and members.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/chat/jinja_builtins.h"
#include "model/chat/jinja_operators.h"
#include "model/tokenizer/utf8.h"

namespace kvc::jinja {

namespace {

std::int64_t num_characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// Python's index among `size` items; negative: outside.
std::int64_t place_of(std::int64_t index, std::int64_t size) {
  if (index < 0) index += size;
  return index < size ? index : -1;
}

// Undefined where the index is outside, as in at_index.
Value character_at(const std::string& text, std::int64_t index, const std::string& name) {
  std::int64_t left = place_of(index, num_characters(text));
  if (left < 0) return Value::undefined(name);
  auto character = Characters(text).begin();
  while (left-- > 0) ++character;
  return std::string((*character).bytes);
}

Value at_index(const std::vector<Value>& items, std::int64_t index, const std::string& name) {
  const std::int64_t place = place_of(index, static_cast<std::int64_t>(items.size()));
  return place < 0 ? Value::undefined(name) : items[static_cast<std::size_t>(place)];
}

// The positions that Python's [begin:end:step] selects of `size`.
std::vector<std::size_t> slice_positions(std::int64_t size, const Value& begin, const Value& end,
                                         const Value& step) {
  const std::int64_t stride = step.is_none() ? 1 : step.integer("a slice");
  KVC_CHECK(stride != 0, "a slice step is zero");
  const auto bound = [&](const Value& value, std::int64_t absent) {
    if (value.is_none()) return absent;
    const std::int64_t position = std::clamp(value.integer("a slice"), -size - 1, size);
    const std::int64_t shifted = position < 0 ? position + size : position;
    return stride > 0 ? std::clamp<std::int64_t>(shifted, 0, size)
                      : std::clamp<std::int64_t>(shifted, -1, size - 1);
  };
  const std::int64_t first = bound(begin, stride > 0 ? 0 : size - 1);
  const std::int64_t last = bound(end, stride > 0 ? size : -1);
  std::vector<std::size_t> positions;
  for (std::int64_t i = first; stride > 0 ? i < last : i > last; i += stride) {
    positions.push_back(static_cast<std::size_t>(i));
    if (stride > size || stride < -size) break;
  }
  return positions;
}

}  // namespace

Value item(const Value& value, const Value& key) {
  if (const auto* missing = value.as<Undefined>()) fail("'{}' is not defined", missing->name);
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(key)) return *found;
  }
  if (key.is_string()) {
    const std::string& name = key.string("an index");
    if (Namespace* space = value.name_space()) {
      const auto found = space->attributes.find(name);
      return found == space->attributes.end() ? Value::undefined(name) : found->second;
    }
    const auto bound = method(value, name);
    return bound ? *bound : Value::undefined(name);
  }
  const std::string name = "the item";
  if (!key.is_number() || key.as<double>() != nullptr) return Value::undefined(name);
  const std::int64_t index = key.integer("an index");
  if (const List* list = value.list()) return at_index(list->items, index, name);
  if (value.is_string()) return character_at(value.string("an index"), index, name);
  return Value::undefined(name);
}

Value attribute(const Value& value, const std::string& name) {
  if (const auto* missing = value.as<Undefined>()) {
    fail("'{}' is not defined, so it has no '{}'", missing->name, name);
  }
  if (value.name_space() == nullptr) {
    if (auto bound = method(value, name)) return *bound;
  }
  return item(value, name);
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step,
            Budget& budget) {
  if (value.is_string()) {
    const std::string& all = value.string("a slice");
    budget.bytes(all.size() * 2 * sizeof(std::size_t));  // the places of characters
    std::vector<std::size_t> begins;
    for (const Character& character : Characters(all)) begins.push_back(character.begin);
    std::string text;
    for (const std::size_t i :
         slice_positions(static_cast<std::int64_t>(begins.size()), begin, end, step)) {
      text.append(all, begins[i], (i + 1 < begins.size() ? begins[i + 1] : all.size()) - begins[i]);
    }
    return text;
  }
  if (const auto* missing = value.as<Undefined>()) fail("'{}' is not defined", missing->name);
  KVC_CHECK(value.list() != nullptr, "a slice of {} is not possible", value.type_name());
  const std::vector<Value>& all = value.list()->items;
  std::vector<Value> items;
  for (const std::size_t i :
       slice_positions(static_cast<std::int64_t>(all.size()), begin, end, step)) {
    items.push_back(all[i]);
  }
  budget.bytes(items.size() * sizeof(Value));
  return Value::list(std::move(items), value.list()->is_tuple);
}

std::vector<Value> members(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (const List* list = value.list()) {
    items = list->items;
  } else if (Generator* left = value.generator()) {
    items.assign(left->items.begin() + static_cast<std::ptrdiff_t>(left->next), left->items.end());
    left->next = left->items.size();
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, unused] : dict->entries) items.emplace_back(key);
  } else if (value.is_string()) {
    const std::string& text = value.string("a loop");
    budget.bytes(text.size() * sizeof(Value));
    for (const Character& c : Characters(text)) items.emplace_back(std::string(c.bytes));
    return items;
  } else {
    KVC_CHECK(value.is_undefined(), "{} has no members to go through", value.type_name());
  }
  budget.bytes(items.size() * sizeof(Value));
  return items;
}

std::int64_t length(const Value& value) {
  if (value.is_string()) {
    return num_characters(value.string("length"));
  }
  if (value.is_undefined()) return 0;
  if (value.dict() != nullptr) return static_cast<std::int64_t>(value.dict()->entries.size());
  KVC_CHECK(value.list() != nullptr, "{} has no length", value.type_name());
  return static_cast<std::int64_t>(value.list()->items.size());
}

}  // namespace kvc::jinja

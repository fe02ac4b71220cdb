#include "model/chat/jinja_value.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace kvc::jinja {

namespace {

constexpr int kMaxDepth = 100;  // of lists and dicts inside each other

}  // namespace

const std::size_t* Dict::place_of(const Value& key) const {
  const auto in = [](const auto& places, const auto& name) {
    const auto found = places.find(name);
    return found == places.end() ? nullptr : &found->second;
  };
  if (const auto* text = key.as<std::string>()) return in(by_text_, *text);
  const auto* number = key.as<std::int64_t>();
  return number == nullptr ? nullptr : in(by_number_, *number);
}

const Value* Dict::find(const Value& key) const {
  const std::size_t* place = place_of(key);
  return place == nullptr ? nullptr : &entries[*place].second;
}

void Dict::set(Value key, Value value) {
  KVC_CHECK(key.is_string() || key.as<std::int64_t>() != nullptr,
            "a dict key is {}; only strings and integers are supported", key.type_name());
  if (const std::size_t* place = place_of(key)) {
    entries[*place].second = std::move(value);
    return;
  }
  const Value& kept = entries.emplace_back(std::move(key), std::move(value)).first;
  if (const auto* text = kept.as<std::string>()) {
    by_text_.emplace(*text, entries.size() - 1);
  } else {
    by_number_.emplace(*kept.as<std::int64_t>(), entries.size() - 1);
  }
}

Value Value::none() { return Value(Data(None{})); }

Value Value::undefined(std::string name) { return Value(Data(Undefined{std::move(name)})); }

// A namespace or a macro, which nothing may hold, counts more than is allowed.
int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  if (generator() != nullptr) return generator()->depth;
  if (dict() != nullptr) return dict()->depth;
  return name_space() != nullptr || callable() != nullptr ? kMaxDepth : 0;
}

int Value::depth_around(const std::vector<Value>& items) {
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, item.depth() + 1);
  KVC_CHECK(depth <= kMaxDepth,
            "a list that holds a namespace, a macro or more than {} levels is not supported",
            kMaxDepth);
  return depth;
}

Value Value::list(std::vector<Value> items, bool is_tuple) {
  const int depth = depth_around(items);
  return Value(Data(std::shared_ptr<const List>(
      std::make_shared<List>(List{std::move(items), is_tuple, depth}))));
}

Value Value::generator(std::vector<Value> items) {
  const int depth = depth_around(items);
  return Value(Data(std::make_shared<Generator>(Generator{std::move(items), 0, depth})));
}

Value Value::dict(Dict dict) {
  for (const auto& [key, value] : dict.entries)
    dict.depth = std::max(dict.depth, value.depth() + 1);
  KVC_CHECK(dict.depth <= kMaxDepth,
            "a dict that holds a namespace, a macro or more than {} levels is not supported",
            kMaxDepth);
  return Value(Data(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict)))));
}

Value Value::callable(std::string name, std::function<Value(Interpreter&, Arguments&&)> call) {
  return Value(Data(std::shared_ptr<const Callable>(
      std::make_shared<Callable>(Callable{std::move(name), std::move(call)}))));
}

Value Value::new_namespace(std::map<std::string, Value> attributes) {
  return Value(Data(std::make_shared<Namespace>(Namespace{std::move(attributes)})));
}

Value Value::from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::null:
      return none();
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
        return json.get<double>();
      }
      return json.get<std::int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items()) dict.set(key, from_json(value));
      return Value::dict(std::move(dict));
    }
    default:
      fail("JSON of a kind that templates do not know: {}", json.type_name());
  }
}

bool Value::is_number() const {
  return as<bool>() != nullptr || as<std::int64_t>() != nullptr || as<double>() != nullptr;
}

const List* Value::list() const {
  const auto* pointer = as<std::shared_ptr<const List>>();
  return pointer == nullptr ? nullptr : pointer->get();
}

Generator* Value::generator() const {
  const auto* pointer = as<std::shared_ptr<Generator>>();
  return pointer == nullptr ? nullptr : pointer->get();
}

const Dict* Value::dict() const {
  const auto* pointer = as<std::shared_ptr<const Dict>>();
  return pointer == nullptr ? nullptr : pointer->get();
}

Namespace* Value::name_space() const {
  const auto* pointer = as<std::shared_ptr<Namespace>>();
  return pointer == nullptr ? nullptr : pointer->get();
}

const Callable* Value::callable() const {
  const auto* pointer = as<std::shared_ptr<const Callable>>();
  return pointer == nullptr ? nullptr : pointer->get();
}

double Value::number() const {
  if (const auto* integer = as<std::int64_t>()) return static_cast<double>(*integer);
  if (const auto* flag = as<bool>()) return *flag ? 1 : 0;
  return *as<double>();
}

std::int64_t Value::integer(const char* subject) const {
  if (const auto* integer = as<std::int64_t>()) return *integer;
  if (const auto* flag = as<bool>()) return *flag ? 1 : 0;
  fail("{} expects an integer, found {}", subject, type_name());
}

const std::string& Value::string(const char* subject) const {
  const auto* text = as<std::string>();
  KVC_CHECK(text != nullptr, "{} expects a string, found {}", subject, type_name());
  return *text;
}

bool Value::truth() const {
  if (is_number()) return number() != 0;
  if (const auto* text = as<std::string>()) return !text->empty();
  if (list() != nullptr) return !list()->items.empty();
  if (dict() != nullptr) return !dict()->entries.empty();
  return !is_undefined() && !is_none();
}

const char* Value::type_name() const {
  if (list() != nullptr && list()->is_tuple) return "tuple";
  constexpr const char* kNames[] = {"undefined", "None", "bool",      "int",      "float",    "str",
                                    "list",      "dict", "namespace", "function", "generator"};
  return kNames[data_.index()];
}

}  // namespace kvc::jinja

// A value of a template: what Python's objects are to Jinja2.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <optional>
#include "core/json.h"

namespace kvc::jinja {

class Budget;
class Interpreter;
class Value;

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Undefined {
  std::string name;  // of what is missing, for messages
};
struct None {};

// Lists and tuples; they differ only in how they print.
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;
};

// Python's generator: true whatever is left of it, and each of its items comes once.
struct Generator {
  std::vector<Value> items;
  std::size_t next = 0;
  int depth = 1;
};

// Keys are strings or integers, in the order of their insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // new ones by set() alone
  int depth = 1;
  const Value* find(const Value& key) const;  // nullptr: no such key
  void set(Value key, Value value);           // Error for other keys

 private:
  // Places in `entries`, whose keys hold the texts.
  std::unordered_map<std::string_view, std::size_t> by_text_;
  std::unordered_map<std::int64_t, std::size_t> by_number_;
  const std::size_t* place_of(const Value& key) const;
};

struct Namespace {
  std::map<std::string, Value> attributes;
};

struct Callable {
  std::string name;
  std::function<Value(Interpreter&, Arguments&&)> call;
};

class Value {
 public:
  // Copies share texts and containers.
  using Text = std::shared_ptr<const std::string>;
  using Data =
      std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                   std::shared_ptr<const Callable>, std::shared_ptr<Generator>>;

  Value() : data_(Undefined{}) {}
  Value(bool value) : data_(value) {}
  Value(std::int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(const char* value) : Value(std::string(value)) {}
  static Value none();
  static Value undefined(std::string name);
  // Error when values nest too deeply, or hold a namespace or a macro.
  static Value list(std::vector<Value> items, bool is_tuple = false);
  static Value generator(std::vector<Value> items);  // Error as of list()
  static Value dict(Dict dict);
  static Value callable(std::string name, std::function<Value(Interpreter&, Arguments&&)> call);
  static Value new_namespace(std::map<std::string, Value> attributes);
  static Value from_json(const Json& json);

  template <typename T>
  const T* as() const {
    if constexpr (std::is_same_v<T, std::string>) {
      const Text* text = std::get_if<Text>(&data_);
      return text == nullptr ? nullptr : text->get();
    } else {
      return std::get_if<T>(&data_);
    }
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_string() const { return as<std::string>() != nullptr; }
  bool is_number() const;  // bool included, as in Python
  const List* list() const;
  Generator* generator() const;
  const Dict* dict() const;
  Namespace* name_space() const;
  const Callable* callable() const;

  double number() const;                                 // is_number()
  std::int64_t integer(const char* subject) const;       // Error unless an integer or bool
  const std::string& string(const char* subject) const;  // Error unless a string
  bool truth() const;
  const char* type_name() const;  // as Python's

 private:
  explicit Value(Data data) : data_(std::move(data)) {}
  int depth() const;
  // The depth of a value that holds them. Error if too deep.
  static int depth_around(const std::vector<Value>& items);
  Data data_;
};

// Values as text, as Python's str, repr and json.dumps write them.
std::string to_text(const Value& value, Budget& budget);  // str(); undefined is empty

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;  // of one level; absent: on one line
  std::string item_separator = ", ", key_separator = ": ";
};

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace kvc::jinja

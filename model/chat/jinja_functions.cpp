// Global functions.
#include <ctime>
#include <utility>

#include "core/error.h"
#include "model/chat/jinja_builtins.h"
#include "model/chat/jinja_operators.h"

namespace kvc::jinja {

namespace {

Value range(Interpreter& interpreter, Arguments&& arguments) {
  const auto& given = arguments.positional;
  KVC_CHECK(!given.empty() && given.size() <= 3 && arguments.named.empty(),
            "range takes one to three integers");
  const std::int64_t first = given.size() > 1 ? given[0].integer("range") : 0;
  const std::int64_t last = given[given.size() > 1 ? 1 : 0].integer("range");
  const std::int64_t step = given.size() > 2 ? given[2].integer("range") : 1;
  KVC_CHECK(step != 0, "range with step zero");
  std::vector<Value> items;
  for (std::int64_t i = first; step > 0 ? i < last : i > last;) {
    KVC_CHECK(items.size() < static_cast<std::size_t>(Budget::kMaxRange),
              "range gives more than {} numbers", Budget::kMaxRange);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  interpreter.budget().bytes(items.size() * sizeof(Value));
  return Value::list(std::move(items));
}

Dict merged(Interpreter& interpreter, Arguments&& arguments) {
  Dict dict;
  for (const Value& given : arguments.positional) {
    KVC_CHECK(given.dict() != nullptr && arguments.positional.size() == 1,
              "dict and namespace take one dict and named values");
    dict = *given.dict();
  }
  for (auto& [name, value] : arguments.named) dict.set(name, std::move(value));
  interpreter.budget().bytes(dict.entries.size() * sizeof(Value));
  return dict;
}

Value make_dict(Interpreter& interpreter, Arguments&& arguments) {
  return Value::dict(merged(interpreter, std::move(arguments)));
}

Value make_namespace(Interpreter& interpreter, Arguments&& arguments) {
  std::map<std::string, Value> attributes;
  const Dict dict = merged(interpreter, std::move(arguments));
  Value::dict(dict);  // holds what a dict may hold
  for (const auto& [name, value] : dict.entries) attributes[name.string("namespace")] = value;
  return Value::new_namespace(std::move(attributes));
}

Value raise_exception(Interpreter& interpreter, Arguments&& arguments) {
  const Value* message = argument(arguments, 0, "message");
  throw TemplateError("the chat template refuses the conversation: " +
                      (message == nullptr ? std::string() : interpreter.text(*message)));
}

Value strftime_now(Interpreter& interpreter, Arguments&& arguments) {
  const Value* format = argument(arguments, 0, "format");
  KVC_CHECK(format != nullptr && format->is_string(), "strftime_now takes a format");
  const std::time_t now = interpreter.now();
  std::tm local{};
  localtime_r(&now, &local);
  const std::string& pattern = format->string("strftime_now");
  constexpr std::size_t kMostPattern = 4096;
  KVC_CHECK(pattern.size() <= kMostPattern,
            "strftime_now: a format of {} bytes, at most {} are taken", pattern.size(),
            kMostPattern);
  std::string text(8 * pattern.size() + 256, '\0');
  text.resize(std::strftime(text.data(), text.size(), pattern.c_str(), &local));
  KVC_CHECK(!text.empty() || pattern.empty() || pattern == "%p",
            "strftime_now: the format gives no text, or one that is too long");
  return text;
}

}  // namespace

const Value* argument(const Arguments& arguments, std::size_t index, const char* name) {
  if (index < arguments.positional.size()) return &arguments.positional[index];
  for (const auto& [key, value] : arguments.named) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::map<std::string, Value> global_functions() {
  return {{"range", Value::callable("range", range)},
          {"dict", Value::callable("dict", make_dict)},
          {"namespace", Value::callable("namespace", make_namespace)},
          {"raise_exception", Value::callable("raise_exception", raise_exception)},
          {"strftime_now", Value::callable("strftime_now", strftime_now)}};
}

}  // namespace kvc::jinja

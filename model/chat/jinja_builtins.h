// The functions, filters, tests and methods that templates may use.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "model/chat/jinja_interpreter.h"

namespace kvc::jinja {

using Filter = Value (*)(Interpreter&, const Value& value, const Arguments& arguments);
using Test = bool (*)(Interpreter&, const Value& value, const Arguments& arguments);

// nullptr: not supported.
Filter find_text_filter(const std::string& name);
Filter find_sequence_filter(const std::string& name);
Test find_test(const std::string& name);

// range, namespace, dict, raise_exception, strftime_now.
std::map<std::string, Value> global_functions();

// A method of strings, lists or dicts, bound to its value; nullopt: there is none of that name.
// Error for one that Python has and this interpreter lacks.
std::optional<Value> method(const Value& value, const std::string& name);

// Argument `index`, or the one named `name`, or nullptr.
const Value* argument(const Arguments& arguments, std::size_t index, const char* name);

}  // namespace kvc::jinja

// Python's operators, attributes and items on values.
#pragma once

#include <string>
#include <string_view>

#include "model/chat/jinja_limits.h"
#include "model/chat/jinja_value.h"

namespace kvc::jinja {

Value negate(const Value& value);
// + - * / // % ** ~ ; Error naming the operator for other types than Python takes.
Value arithmetic(std::string_view op, const Value& left, const Value& right, Budget& budget);
// == != < <= > >= in, not in
bool compare(std::string_view op, const Value& left, const Value& right, Budget& budget);
bool equal(const Value& left, const Value& right, Budget& budget);
bool less(const Value& left, const Value& right, Budget& budget);

// value.name: a method of strings, lists and dicts, or else an item. Undefined where there is none.
Value attribute(const Value& value, const std::string& name);
// value[key]: an item, or else an attribute.
Value item(const Value& value, const Value& key);
// value[begin:end:step]; none where absent.
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step,
            Budget& budget);

// The members of a list, the characters of a string, the keys of a dict, nothing of undefined.
std::vector<Value> members(const Value& value, Budget& budget);
std::int64_t length(const Value& value);

}  // namespace kvc::jinja

#include <utility>

#include "core/error.h"
#include "model/chat/jinja_builtins.h"
#include "model/chat/jinja_interpreter.h"
#include "model/chat/jinja_operators.h"

namespace kvc::jinja {

Value Interpreter::evaluate(const Expression& node, Scope& scope) {
  const Level level(*this);
  switch (node.kind) {
    case ExpressionKind::kConstant:
      return node.value;
    case ExpressionKind::kName:
      return lookup(node.name, scope);
    case ExpressionKind::kList:
    case ExpressionKind::kDict:
      return evaluate_collection(node, scope);
    case ExpressionKind::kAttribute:
      if (node.name == "cycle" && node.operands[0]->name == "loop") {
        return lookup("loop.cycle", scope);
      }
      return attribute(evaluate(*node.operands[0], scope), node.name);
    case ExpressionKind::kItem: {
      const Value subject = evaluate(*node.operands[0], scope);
      if (subject.is_string()) budget_.scan(subject.string("an index").size());
      return item(subject, evaluate(*node.operands[1], scope));
    }
    case ExpressionKind::kSlice:
      return evaluate_slice(node, scope);
    case ExpressionKind::kCall: {
      const Value function = evaluate(*node.operands[0], scope);
      return call(function, evaluate_arguments(node, scope));
    }
    case ExpressionKind::kFilter:
      return evaluate_filter(node, scope, nullptr);
    case ExpressionKind::kTest: {
      const Value value = evaluate(*node.operands[0], scope);
      return test(node.name, value, evaluate_arguments(node, scope));
    }
    case ExpressionKind::kUnary: {
      const Value value = evaluate(*node.operands[0], scope);
      if (node.name == "not") return !value.truth();
      return node.name == "-" ? negate(value) : negate(negate(value));
    }
    case ExpressionKind::kBinary:
      return evaluate_binary(node, scope);
    case ExpressionKind::kComparison:
      return evaluate_comparison(node, scope);
    case ExpressionKind::kCondition: {
      const bool chosen = evaluate(*node.operands[0], scope).truth();
      const ExpressionPtr& branch = node.operands[chosen ? 1 : 2];
      return branch ? evaluate(*branch, scope) : Value::undefined("the missing else");
    }
  }
  fail("an expression of an unknown kind");
}

Value Interpreter::evaluate_binary(const Expression& node, Scope& scope) {
  Value left = evaluate(*node.operands[0], scope);
  if (node.name == "and") return left.truth() ? evaluate(*node.operands[1], scope) : left;
  if (node.name == "or") return left.truth() ? left : evaluate(*node.operands[1], scope);
  return arithmetic(node.name, left, evaluate(*node.operands[1], scope), budget_);
}

Value Interpreter::evaluate_comparison(const Expression& node, Scope& scope) {
  Value left = evaluate(*node.operands[0], scope);
  for (std::size_t i = 0; i < node.names.size(); ++i) {
    Value right = evaluate(*node.operands[i + 1], scope);
    if (!compare(node.names[i], left, right, budget_)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_collection(const Expression& node, Scope& scope) {
  budget_.bytes(node.operands.size() * sizeof(Value));
  if (node.kind == ExpressionKind::kList) {
    std::vector<Value> items;
    for (const ExpressionPtr& operand : node.operands) items.push_back(evaluate(*operand, scope));
    return Value::list(std::move(items), node.is_tuple);
  }
  Dict dict;
  for (std::size_t i = 0; i < node.operands.size(); i += 2) {
    Value key = evaluate(*node.operands[i], scope);
    dict.set(std::move(key), evaluate(*node.operands[i + 1], scope));
  }
  return Value::dict(std::move(dict));
}

Value Interpreter::evaluate_slice(const Expression& node, Scope& scope) {
  const auto part = [&](std::size_t i) {
    return node.operands[i] ? evaluate(*node.operands[i], scope) : Value::none();
  };
  const Value value = evaluate(*node.operands[0], scope);
  const Value begin = part(1), end = part(2);
  return slice(value, begin, end, part(3), budget_);
}

Arguments Interpreter::evaluate_arguments(const Expression& node, Scope& scope) {
  Arguments arguments;
  for (std::size_t i = 1; i < node.operands.size(); ++i) {
    arguments.positional.push_back(evaluate(*node.operands[i], scope));
  }
  for (const auto& [name, operand] : node.named) {
    arguments.named.emplace_back(name, evaluate(*operand, scope));
  }
  return arguments;
}

// `subject`: what the innermost filter of a filter block applies to.
Value Interpreter::evaluate_filter(const Expression& node, Scope& scope, const Value* subject) {
  Value value;
  if (node.operands[0] == nullptr) {
    value = *subject;
  } else if (subject != nullptr && node.operands[0]->kind == ExpressionKind::kFilter) {
    value = evaluate_filter(*node.operands[0], scope, subject);
  } else {
    value = evaluate(*node.operands[0], scope);
  }
  return filter(node.name, std::move(value), evaluate_arguments(node, scope));
}

Value Interpreter::filter(const std::string& name, Value&& value, Arguments&& arguments) {
  budget_.step();
  Filter found = find_text_filter(name);
  if (found == nullptr) found = find_sequence_filter(name);
  KVC_CHECK(found != nullptr, "the filter '{}' is not supported", name);
  if (value.is_string()) budget_.scan(value.string("a filter").size());
  return found(*this, value, arguments);
}

bool Interpreter::test(const std::string& name, const Value& value, const Arguments& arguments) {
  const Test found = find_test(name);
  KVC_CHECK(found != nullptr, "the test '{}' is not supported", name);
  if (value.is_string()) budget_.scan(value.string("a test").size());
  return found(*this, value, arguments);
}

}  // namespace kvc::jinja

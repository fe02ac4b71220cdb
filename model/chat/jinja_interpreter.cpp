#include "model/chat/jinja_interpreter.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/chat/jinja_builtins.h"
#include "model/chat/jinja_operators.h"
#include "model/chat/jinja_value.h"

namespace kvc::jinja {

namespace {

// An error of a statement or expression, once it names its line.
class LocatedError : public Error {
 public:
  using Error::Error;
};

template <typename Function>
auto with_line(int line, Function function) {
  try {
    return function();
  } catch (const TemplateError&) {
    throw;
  } catch (const LocatedError&) {
    throw;
  } catch (const Error& error) {
    throw LocatedError(fmt::format("line {}: {}", line, error.what()));
  }
}

// What `loop` is inside of a for block.
Value loop_value(const std::vector<Value>& items, std::size_t index) {
  const auto size = static_cast<std::int64_t>(items.size());
  const auto at = static_cast<std::int64_t>(index);
  Dict loop;
  loop.set("index", at + 1);
  loop.set("index0", at);
  loop.set("revindex", size - at);
  loop.set("revindex0", size - at - 1);
  loop.set("first", at == 0);
  loop.set("last", at + 1 == size);
  loop.set("length", size);
  // Only recursive loops, which are not supported, have other depths.
  loop.set("depth", std::int64_t{1});
  loop.set("depth0", std::int64_t{0});
  if (at > 0) loop.set("previtem", items[index - 1]);
  if (at + 1 < size) loop.set("nextitem", items[index + 1]);
  return Value::dict(std::move(loop));
}

Value cycle(std::size_t index) {
  return Value::callable("loop.cycle", [index](Interpreter&, Arguments&& arguments) {
    KVC_CHECK(!arguments.positional.empty(), "loop.cycle expects values");
    return arguments.positional[index % arguments.positional.size()];
  });
}

}  // namespace

Interpreter::Level::Level(Interpreter& interpreter) : depth_(interpreter.depth_) {
  KVC_CHECK(depth_ < Budget::kMaxDepth, "macros or expressions are nested too deeply");
  ++depth_;
  interpreter.budget_.step();
}

Interpreter::Level::~Level() { --depth_; }

Interpreter::Interpreter(std::map<std::string, Value> variables, std::time_t now) : now_(now) {
  globals_.names = global_functions();
  for (auto& [name, value] : variables) globals_.names[name] = std::move(value);
}

std::string Interpreter::run(const Block& block) {
  Scope top{{}, &globals_};
  std::string out;
  run(block, top, out);
  return out;
}

std::string Interpreter::text(const Value& value) { return to_text(value, budget_); }

Interpreter::Flow Interpreter::run(const Block& block, Scope& scope, std::string& out) {
  for (const auto& statement : block) {
    const Flow flow = with_line(statement->line, [&] { return run(*statement, scope, out); });
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Statement& statement, Scope& scope, std::string& out) {
  const Level level(*this);
  switch (statement.kind) {
    case StatementKind::kData:
      budget_.bytes(statement.name.size());
      out += statement.name;
      break;
    case StatementKind::kPrint:
      out += text(evaluate(*statement.expression, scope));
      break;
    case StatementKind::kIf:
      return run(
          evaluate(*statement.expression, scope).truth() ? statement.body : statement.otherwise,
          scope, out);
    case StatementKind::kFor:
      return run_for(statement, scope, out);
    case StatementKind::kSet:
      run_set(statement, scope);
      break;
    case StatementKind::kSetBlock:
    case StatementKind::kFilterBlock: {
      Value text = block_text(statement, scope);
      if (statement.filter) text = evaluate_filter(*statement.filter, scope, &text);
      if (statement.kind == StatementKind::kFilterBlock) {
        out += this->text(text);
      } else {
        assign(statement.targets, text, scope);
      }
      break;
    }
    case StatementKind::kMacro:
      scope.names[statement.name] = macro(statement, scope, statement.name);
      break;
    case StatementKind::kCallBlock:
      run_call_block(statement, scope, out);
      break;
    case StatementKind::kWith: {
      Scope inner{{}, &scope};
      for (const Parameter& set : statement.parameters) {
        inner.names[set.name] = evaluate(*set.value, scope);
      }
      return run(statement.body, inner, out);
    }
    case StatementKind::kScope: {
      Scope inner{{}, &scope};
      return run(statement.body, inner, out);
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

std::string Interpreter::block_text(const Statement& statement, Scope& scope) {
  Scope inner{{}, &scope};
  std::string text;
  run(statement.body, inner, text);
  return text;
}

// The items that the loop's condition keeps.
std::vector<Value> Interpreter::loop_items(const Statement& statement, Scope& scope) {
  std::vector<Value> items = members(evaluate(*statement.expression, scope), budget_);
  if (!statement.filter) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    Scope inner{{}, &scope};
    assign(statement.targets, item, inner);
    if (evaluate(*statement.filter, inner).truth()) kept.push_back(std::move(item));
  }
  return kept;
}

Interpreter::Flow Interpreter::run_for(const Statement& statement, Scope& scope, std::string& out) {
  const std::vector<Value> items = loop_items(statement, scope);
  bool reached_end = false;  // of the body, in any turn: if not, Jinja2 runs `else`
  for (std::size_t i = 0; i < items.size(); ++i) {
    budget_.step();
    Scope inner{{}, &scope};
    inner.names["loop"] = loop_value(items, i);
    inner.names["loop.cycle"] = cycle(i);
    assign(statement.targets, items[i], inner);
    const Flow flow = run(statement.body, inner, out);
    reached_end = reached_end || flow == Flow::kNext;
    if (flow == Flow::kBreak) break;
  }
  if (reached_end) return Flow::kNext;
  Scope inner{{}, &scope};
  return run(statement.otherwise, inner, out);
}

void Interpreter::assign(const std::vector<std::string>& targets, const Value& value,
                         Scope& scope) {
  if (targets.size() == 1) {
    scope.names[targets[0]] = value;
    return;
  }
  const std::vector<Value> parts = members(value, budget_);
  KVC_CHECK(parts.size() == targets.size(), "{} values cannot be unpacked into {} names",
            parts.size(), targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) scope.names[targets[i]] = parts[i];
}

void Interpreter::run_set(const Statement& statement, Scope& scope) {
  const Value value = evaluate(*statement.expression, scope);
  if (statement.attribute.empty()) return assign(statement.targets, value, scope);
  const Value target = lookup(statement.targets[0], scope);
  KVC_CHECK(target.name_space() != nullptr && statement.targets.size() == 1,
            "only attributes of a namespace can be set, '{}' is {}", statement.targets[0],
            target.type_name());
  Value::list({value});  // a namespace holds what a list may hold
  target.name_space()->attributes[statement.attribute] = value;
}

Value Interpreter::lookup(const std::string& name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->outer) {
    const auto found = at->names.find(name);
    if (found != at->names.end()) return found->second;
  }
  return Value::undefined(name);
}

}  // namespace kvc::jinja

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/chat/jinja_interpreter.h"

namespace kvc::jinja {

// A macro sees the names around its definition as they are when it is called. It cannot outlive
// them: neither lists nor dicts nor namespaces hold macros, and an assignment stays in its block.
Value Interpreter::macro(const Statement& statement, Scope& scope, const std::string& name) {
  return Value::callable(name, [&statement, &scope](Interpreter& self, Arguments&& arguments) {
    return self.call_macro(statement, scope, std::move(arguments));
  });
}

Value Interpreter::call_macro(const Statement& statement, Scope& scope, Arguments&& arguments) {
  const std::string name = statement.name.empty() ? "caller" : statement.name;
  Scope inner{{}, &scope};
  KVC_CHECK(arguments.positional.size() <= statement.parameters.size(),
            "macro '{}' takes {} arguments, {} given", name, statement.parameters.size(),
            arguments.positional.size());
  for (std::size_t i = 0; i < statement.parameters.size(); ++i) {
    const Parameter& parameter = statement.parameters[i];
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& one) { return one.first == parameter.name; });
    if (i < arguments.positional.size()) {
      inner.names[parameter.name] = std::move(arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      inner.names[parameter.name] = std::move(named->second);
    } else {
      inner.names[parameter.name] =
          parameter.value ? evaluate(*parameter.value, inner) : Value::undefined(parameter.name);
    }
  }
  for (auto& [key, value] : arguments.named) {
    const bool known = std::any_of(statement.parameters.begin(), statement.parameters.end(),
                                   [&](const Parameter& one) { return one.name == key; });
    KVC_CHECK(known || key == "caller", "macro '{}' takes no argument named '{}'", name, key);
    if (key == "caller") inner.names[key] = std::move(value);
  }
  std::string out;
  run(statement.body, inner, out);
  return out;
}

void Interpreter::run_call_block(const Statement& statement, Scope& scope, std::string& out) {
  Arguments arguments = evaluate_arguments(*statement.expression, scope);
  arguments.named.emplace_back("caller", macro(statement, scope, "caller"));
  out += text(call(evaluate(*statement.expression->operands[0], scope), std::move(arguments)));
}

Value Interpreter::call(const Value& function, Arguments&& arguments) {
  if (const auto* missing = function.as<Undefined>()) {
    fail("'{}' is not defined, so it cannot be called", missing->name);
  }
  KVC_CHECK(function.callable() != nullptr, "{} cannot be called", function.type_name());
  return function.callable()->call(*this, std::move(arguments));
}

}  // namespace kvc::jinja

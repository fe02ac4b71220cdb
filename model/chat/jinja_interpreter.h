// Runs a parsed template over its variables.
#pragma once

#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/jinja_ast.h"
#include "model/chat/jinja_limits.h"
#include "model/chat/jinja_value.h"

namespace kvc::jinja {

// Names of one block; blocks see those of the blocks around them.
struct Scope {
  std::map<std::string, Value> names;
  Scope* outer = nullptr;
};

// A template's own error: what raise_exception was given.
class TemplateError : public Error {
 public:
  using Error::Error;
};

class Interpreter {
 public:
  // `now`: what strftime_now tells, in local time.
  Interpreter(std::map<std::string, Value> variables, std::time_t now);
  // Error naming the line of what cannot be done.
  std::string run(const Block& block);

  Budget& budget() { return budget_; }
  std::time_t now() const { return now_; }
  std::string text(const Value& value);

  Value call(const Value& function, Arguments&& arguments);
  // A filter or test by name, e.g. for map("upper") and select("string").
  Value filter(const std::string& name, Value&& value, Arguments&& arguments);
  bool test(const std::string& name, const Value& value, const Arguments& arguments);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Level {
   public:
    explicit Level(Interpreter& interpreter);
    ~Level();
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  Flow run(const Block& block, Scope& scope, std::string& out);
  Flow run(const Statement& statement, Scope& scope, std::string& out);
  Flow run_for(const Statement& statement, Scope& scope, std::string& out);
  void run_set(const Statement& statement, Scope& scope);
  void run_call_block(const Statement& statement, Scope& scope, std::string& out);
  std::string block_text(const Statement& statement, Scope& scope);
  std::vector<Value> loop_items(const Statement& statement, Scope& scope);
  void assign(const std::vector<std::string>& targets, const Value& value, Scope& scope);
  Value macro(const Statement& statement, Scope& scope, const std::string& name);
  Value call_macro(const Statement& statement, Scope& scope, Arguments&& arguments);

  Value evaluate(const Expression& node, Scope& scope);
  Value evaluate_binary(const Expression& node, Scope& scope);
  Value evaluate_comparison(const Expression& node, Scope& scope);
  Value evaluate_collection(const Expression& node, Scope& scope);
  Value evaluate_slice(const Expression& node, Scope& scope);
  Value evaluate_filter(const Expression& node, Scope& scope, const Value* subject);
  Arguments evaluate_arguments(const Expression& node, Scope& scope);
  Value lookup(const std::string& name, const Scope& scope) const;

  Budget budget_;
  std::time_t now_;
  Scope globals_;
  int depth_ = 0;  // statements and expressions that are being worked on
};

}  // namespace kvc::jinja

// A parsed template: statements that hold expressions.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <string_view>
#include "model/chat/jinja_value.h"

namespace kvc::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kConstant,    // value
  kName,        // name
  kList,        // operands; also tuples (is_tuple)
  kDict,        // operands: key, value, key, value ...
  kAttribute,   // operands[0].name
  kItem,        // operands[0][operands[1]]
  kSlice,       // operands[0][operands[1]:operands[2]:operands[3]], absent ones null
  kCall,        // operands[0](operands[1] ..., named)
  kFilter,      // operands[0] | name(operands[1] ..., named); in a filter block operands[0] is null
  kTest,        // operands[0] is name(operands[1] ...)
  kUnary,       // name: - + not
  kBinary,      // name: an operator, "and" or "or"
  kComparison,  // operands[0] names[0] operands[1] names[1] operands[2] ...
  kCondition,   // operands[1] if operands[0] else operands[2], which may be null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 0;
  int depth = 1;
  std::string name;
  Value value;
  bool is_tuple = false;
  std::vector<ExpressionPtr> operands;
  std::vector<std::string> names;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class StatementKind {
  kData,         // name: the text
  kPrint,        // expression
  kIf,           // expression, body, otherwise
  kFor,          // targets, expression, filter, body, otherwise
  kSet,          // targets = expression, or target.attribute = expression
  kSetBlock,     // targets[0] = text of body, through `filter` if there is one
  kMacro,        // name, parameters, body
  kCallBlock,    // expression: a call whose `caller` is body with parameters
  kFilterBlock,  // filter applied to the text of body
  kWith,         // parameters set in a scope of their own, body
  kScope,        // body alone: {% generation %}
  kBreak,
  kContinue,
};

struct Parameter {
  std::string name;
  ExpressionPtr value;  // of a macro: the default, or null
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  int line = 0;
  std::string name;
  std::string attribute;
  std::vector<std::string> targets;
  std::vector<Parameter> parameters;
  ExpressionPtr expression, filter;
  Block body, otherwise;
};

// Tokens to statements, with Jinja2's grammar. Refused by name: extends, block, include, import,
// autoescape, trans and recursive loops.
// Error with the line of what is malformed or not supported.
Block parse(std::string_view source);

}  // namespace kvc::jinja

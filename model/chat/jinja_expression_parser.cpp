#include "model/chat/jinja_expression_parser.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "model/tokenizer/utf8.h"

namespace kvc::jinja {

bool ExpressionParser::is_operator(std::string_view text) const {
  return current().kind == TokenKind::kOperator && current().text == text;
}

bool ExpressionParser::is_name(std::string_view text) const {
  return current().kind == TokenKind::kName && current().text == text;
}

bool ExpressionParser::take_operator(std::string_view text) {
  return is_operator(text) && (next(), true);
}

bool ExpressionParser::take_name(std::string_view text) { return is_name(text) && (next(), true); }

void ExpressionParser::fail_here(const std::string& what) const {
  fail("line {}: {}", current().line, what);
}

namespace {

std::string found(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kBlockEnd:
      return "%}";
    case TokenKind::kPrintEnd:
      return "}}";
    default:
      return "'" + replace_invalid_utf8(token.text.substr(0, 40)) + "'";
  }
}

}  // namespace

void ExpressionParser::expect(TokenKind kind, const char* what) {
  if (current().kind != kind)
    fail_here(fmt::format("expected {}, found {}", what, found(current())));
  next();
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!take_operator(text))
    fail_here(fmt::format("expected '{}', found {}", text, found(current())));
}

void ExpressionParser::expect_name(std::string_view text) {
  if (!take_name(text)) fail_here(fmt::format("expected '{}', found {}", text, found(current())));
}

std::string ExpressionParser::expect_any_name() {
  if (current().kind != TokenKind::kName) {
    fail_here(fmt::format("expected a name, found {}", found(current())));
  }
  return next().text;
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, std::string name) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->name = std::move(name);
  node->line = current().line;
  return node;
}

ExpressionPtr ExpressionParser::add(ExpressionPtr node, ExpressionPtr operand) const {
  if (operand != nullptr) node->depth = std::max(node->depth, operand->depth + 1);
  if (node->depth > kMaxDepth)
    fail_here(fmt::format("an expression has more than {} levels", kMaxDepth));
  node->operands.push_back(std::move(operand));
  return node;
}

ExpressionPtr ExpressionParser::binary(const std::string& name, ExpressionPtr left,
                                       ExpressionPtr right) const {
  return add(add(make(ExpressionKind::kBinary, name), std::move(left)), std::move(right));
}

ExpressionPtr ExpressionParser::chain(Reader operand,
                                      const std::vector<std::string_view>& operators) {
  ExpressionPtr left = (this->*operand)();
  while (current().kind == TokenKind::kOperator &&
         std::find(operators.begin(), operators.end(), current().text) != operators.end()) {
    const std::string name = next().text;
    ExpressionPtr right = (this->*operand)();
    left = binary(name, std::move(left), std::move(right));
  }
  return left;
}

ExpressionPtr ExpressionParser::expression(bool with_condition) {
  if (++nesting_ > kMaxDepth)
    fail_here(fmt::format("an expression has more than {} levels", kMaxDepth));
  ExpressionPtr node = disjunction();
  while (with_condition && take_name("if")) {
    ExpressionPtr condition = make(ExpressionKind::kCondition);
    condition = add(std::move(condition), disjunction());
    condition = add(std::move(condition), std::move(node));
    condition = add(std::move(condition), take_name("else") ? expression() : nullptr);
    node = std::move(condition);
  }
  --nesting_;
  return node;
}

ExpressionPtr ExpressionParser::tuple(bool with_condition) {
  ExpressionPtr first = expression(with_condition);
  if (!is_operator(",")) return first;
  ExpressionPtr node = add(make(ExpressionKind::kList), std::move(first));
  node->is_tuple = true;
  while (take_operator(",")) {
    const bool ends = current().kind == TokenKind::kBlockEnd ||
                      current().kind == TokenKind::kPrintEnd || is_operator(")");
    if (ends) break;
    node = add(std::move(node), expression(with_condition));
  }
  return node;
}

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  while (take_name("or")) {
    ExpressionPtr right = conjunction();
    left = binary("or", std::move(left), std::move(right));
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  while (take_name("and")) {
    ExpressionPtr right = negation();
    left = binary("and", std::move(left), std::move(right));
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  if (++nesting_ > kMaxDepth) fail_here("too many negations");
  ExpressionPtr node = make(ExpressionKind::kUnary, next().text);
  node = add(std::move(node), negation());
  --nesting_;
  return node;
}

ExpressionPtr ExpressionParser::comparison() {
  static const std::vector<std::string_view> kOperators = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr first = sum();
  ExpressionPtr node;
  while (true) {
    std::string name;
    const Token& token = current();
    if (token.kind == TokenKind::kOperator &&
        std::find(kOperators.begin(), kOperators.end(), token.text) != kOperators.end()) {
      name = next().text;
    } else if (take_name("in")) {
      name = "in";
    } else if (is_name("not") && tokens_[at_ + 1].kind == TokenKind::kName &&
               tokens_[at_ + 1].text == "in") {
      next();
      next();
      name = "not in";
    } else {
      return node != nullptr ? std::move(node) : std::move(first);
    }
    if (node == nullptr) node = add(make(ExpressionKind::kComparison), std::move(first));
    node->names.push_back(name);
    node = add(std::move(node), sum());
  }
}

ExpressionPtr ExpressionParser::sum() {
  return chain(&ExpressionParser::concatenation, {"+", "-"});
}

ExpressionPtr ExpressionParser::concatenation() { return chain(&ExpressionParser::product, {"~"}); }

ExpressionPtr ExpressionParser::product() {
  return chain(&ExpressionParser::power, {"*", "/", "//", "%"});
}

ExpressionPtr ExpressionParser::power() { return chain(&ExpressionParser::unary, {"**"}); }

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  ExpressionPtr node;
  if (is_operator("-") || is_operator("+")) {
    if (++nesting_ > kMaxDepth) fail_here("too many signs");
    node = make(ExpressionKind::kUnary, next().text);
    node = add(std::move(node), unary(false));
    --nesting_;
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filter ? filters(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::primary() {
  ExpressionPtr node = make(ExpressionKind::kConstant);
  const Token& token = current();
  if (token.kind == TokenKind::kName) {
    const std::string name = next().text;
    if (name == "true" || name == "True") {
      node->value = true;
    } else if (name == "false" || name == "False") {
      node->value = false;
    } else if (name == "none" || name == "None") {
      node->value = Value::none();
    } else {
      node->kind = ExpressionKind::kName;
      node->name = name;
    }
    return node;
  }
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (current().kind == TokenKind::kString) text += next().text;
    node->value = text;
    return node;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
    const char* end = token.text.data() + token.text.size();
    std::int64_t integer = 0;
    double number = 0;
    const bool is_integer = token.kind == TokenKind::kInteger;
    const auto error = is_integer ? std::from_chars(token.text.data(), end, integer).ec
                                  : std::from_chars(token.text.data(), end, number).ec;
    if (error != std::errc()) fail_here(fmt::format("the number {} is too large", token.text));
    node->value = is_integer ? Value(integer) : Value(number);
    next();
    return node;
  }
  if (is_operator("(")) return parenthesis();
  if (is_operator("[")) return list();
  if (is_operator("{")) return dict();
  fail_here(fmt::format("expected an expression, found {}", found(token)));
}

ExpressionPtr ExpressionParser::parenthesis() {
  expect_operator("(");
  ExpressionPtr node;
  if (is_operator(")")) {
    node = make(ExpressionKind::kList);
    node->is_tuple = true;
  } else {
    node = tuple();
  }
  expect_operator(")");
  return node;
}

ExpressionPtr ExpressionParser::list() {
  ExpressionPtr node = make(ExpressionKind::kList);
  expect_operator("[");
  while (!is_operator("]")) {
    node = add(std::move(node), expression());
    if (!is_operator("]")) expect_operator(",");
  }
  expect_operator("]");
  return node;
}

ExpressionPtr ExpressionParser::dict() {
  ExpressionPtr node = make(ExpressionKind::kDict);
  expect_operator("{");
  while (!is_operator("}")) {
    node = add(std::move(node), expression());
    expect_operator(":");
    node = add(std::move(node), expression());
    if (!is_operator("}")) expect_operator(",");
  }
  expect_operator("}");
  return node;
}

}  // namespace kvc::jinja

#include <utility>

#include "core/error.h"
#include "model/chat/jinja_expression_parser.h"

namespace kvc::jinja {

// Attributes, items and calls.
ExpressionPtr ExpressionParser::postfix(ExpressionPtr node) {
  while (true) {
    if (take_operator(".")) {
      if (current().kind == TokenKind::kInteger) {
        ExpressionPtr item = add(make(ExpressionKind::kItem), std::move(node));
        node = add(std::move(item), primary());
      } else {
        ExpressionPtr attribute = make(ExpressionKind::kAttribute);
        attribute->name = expect_any_name();
        node = add(std::move(attribute), std::move(node));
      }
    } else if (is_operator("[")) {
      node = subscript(std::move(node));
    } else if (is_operator("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr node) {
  ExpressionPtr result = add(make(ExpressionKind::kItem), std::move(node));
  expect_operator("[");
  const auto part = [this] {
    return is_operator(":") || is_operator("]") ? nullptr : expression();
  };
  ExpressionPtr first = part();
  if (is_operator(":")) {
    result->kind = ExpressionKind::kSlice;
    result = add(std::move(result), std::move(first));
    for (int i = 0; i < 2; ++i) {
      result = add(std::move(result), take_operator(":") ? part() : nullptr);
    }
  } else {
    if (first == nullptr) fail_here("expected an index, found ']'");
    result = add(std::move(result), std::move(first));
  }
  expect_operator("]");
  return result;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr node) {
  while (true) {
    if (take_operator("|")) {
      node = filter(std::move(node));
    } else if (take_name("is")) {
      node = test(std::move(node));
    } else if (is_operator("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr node) {
  ExpressionPtr result = make(ExpressionKind::kFilter);
  result->name = expect_any_name();
  result = add(std::move(result), std::move(node));
  if (is_operator("(")) arguments(*result);
  return result;
}

ExpressionPtr ExpressionParser::filters_of_block() {
  ExpressionPtr node = filter(nullptr);
  while (take_operator("|")) node = filter(std::move(node));
  return node;
}

ExpressionPtr ExpressionParser::postfix_only() { return postfix(primary()); }

ExpressionPtr ExpressionParser::test(ExpressionPtr node) {
  const bool negated = take_name("not");
  ExpressionPtr result = make(ExpressionKind::kTest);
  result->name = expect_any_name();
  result = add(std::move(result), std::move(node));
  const Token& token = current();
  const bool is_value = token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
                        token.kind == TokenKind::kFloat || is_operator("[") || is_operator("{");
  const bool is_word = token.kind == TokenKind::kName && !is_name("else") && !is_name("or") &&
                       !is_name("and") && !is_name("if") && !is_name("is");
  if (is_operator("(")) {
    arguments(*result);
  } else if (is_value || is_word) {
    result = add(std::move(result), postfix(primary()));
  }
  if (!negated) return result;
  return add(make(ExpressionKind::kUnary, "not"), std::move(result));
}

ExpressionPtr ExpressionParser::call(ExpressionPtr node) {
  ExpressionPtr result = add(make(ExpressionKind::kCall), std::move(node));
  arguments(*result);
  return result;
}

void ExpressionParser::arguments(Expression& node) {
  expect_operator("(");
  while (!is_operator(")")) {
    if (is_operator("*") || is_operator("**")) fail_here("unpacking with * is not supported");
    const bool is_named = current().kind == TokenKind::kName &&
                          tokens_[at_ + 1].kind == TokenKind::kOperator &&
                          tokens_[at_ + 1].text == "=";
    if (is_named) {
      const std::string name = next().text;
      next();
      node.named.emplace_back(name, expression());
      node.depth = std::max(node.depth, node.named.back().second->depth + 1);
    } else {
      if (!node.named.empty()) fail_here("a positional argument follows a named one");
      node.operands.push_back(expression());
      node.depth = std::max(node.depth, node.operands.back()->depth + 1);
    }
    if (!is_operator(")")) expect_operator(",");
  }
  expect_operator(")");
}

}  // namespace kvc::jinja

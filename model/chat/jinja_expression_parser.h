// The part of the parser that reads expressions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat/jinja_ast.h"
#include "model/chat/jinja_lexer.h"

namespace kvc::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  Token next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_operator(std::string_view text) const;
  bool is_name(std::string_view text) const;
  bool take_operator(std::string_view text);
  bool take_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_any_name();
  void expect(TokenKind kind, const char* what);
  [[noreturn]] void fail_here(const std::string& what) const;

  ExpressionPtr expression(bool with_condition = true);
  ExpressionPtr tuple(bool with_condition = true);  // one expression, or several with commas
  ExpressionPtr postfix_only();                     // a call block's call
  ExpressionPtr filters_of_block();                 // `name(...) | name`, of a text that follows
  static constexpr int kMaxDepth = 150;

 private:
  ExpressionPtr make(ExpressionKind kind, std::string name = {}) const;
  ExpressionPtr add(ExpressionPtr node, ExpressionPtr operand) const;
  ExpressionPtr binary(const std::string& name, ExpressionPtr left, ExpressionPtr right) const;
  using Reader = ExpressionPtr (ExpressionParser::*)();
  ExpressionPtr chain(Reader operand, const std::vector<std::string_view>& operators);
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary() { return unary(true); }
  ExpressionPtr unary(bool with_filter);
  ExpressionPtr primary();
  ExpressionPtr parenthesis();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr subscript(ExpressionPtr node);
  ExpressionPtr filters(ExpressionPtr node);
  ExpressionPtr filter(ExpressionPtr node);
  ExpressionPtr test(ExpressionPtr node);
  ExpressionPtr call(ExpressionPtr node);
  void arguments(Expression& node);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace kvc::jinja

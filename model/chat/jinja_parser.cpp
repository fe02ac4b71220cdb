#include "model/chat/jinja_ast.h"

#include <algorithm>
#include <initializer_list>

#include "core/error.h"
#include "model/chat/jinja_expression_parser.h"

namespace kvc::jinja {

namespace {

constexpr int kMaxNesting = 60;  // of blocks

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  Block run() {
    Block block = statements({});
    if (in_.current().kind != TokenKind::kEnd) in_.fail_here("expected the end of the template");
    return block;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // Up to a tag that begins with one of `ends`, whose name is the current token then.
  Block statements(Ends ends) {
    if (++nesting_ > kMaxNesting) in_.fail_here("blocks are nested too deeply");
    Block block;
    while (in_.current().kind != TokenKind::kEnd) {
      if (in_.current().kind == TokenKind::kData) {
        auto data = make(StatementKind::kData);
        data->name = in_.next().text;
        block.push_back(std::move(data));
      } else if (in_.current().kind == TokenKind::kPrintBegin) {
        auto print = make(StatementKind::kPrint);
        in_.next();
        print->expression = in_.tuple();
        in_.expect(TokenKind::kPrintEnd, "}}");
        block.push_back(std::move(print));
      } else {
        in_.expect(TokenKind::kBlockBegin, "{%");
        const bool ended = std::any_of(ends.begin(), ends.end(),
                                       [this](std::string_view end) { return in_.is_name(end); });
        if (ended) {
          --nesting_;
          return block;
        }
        block.push_back(statement());
      }
    }
    if (ends.size() > 0) {
      in_.fail_here(fmt::format("a block is not closed, expected {}", *(ends.end() - 1)));
    }
    --nesting_;
    return block;
  }

  std::unique_ptr<Statement> make(StatementKind kind) const {
    auto node = std::make_unique<Statement>();
    node->kind = kind;
    node->line = in_.current().line;
    return node;
  }

  void end_tag() { in_.expect(TokenKind::kBlockEnd, "%}"); }

  void end_block(std::string_view name) {
    in_.expect_name(name);
    end_tag();
  }

  std::unique_ptr<Statement> statement() {
    using Reader = std::unique_ptr<Statement> (Parser::*)();
    static constexpr std::pair<std::string_view, Reader> kReaders[] = {
        {"if", &Parser::if_statement},      {"for", &Parser::for_statement},
        {"set", &Parser::set_statement},    {"macro", &Parser::macro_statement},
        {"call", &Parser::call_statement},  {"filter", &Parser::filter_statement},
        {"with", &Parser::with_statement},  {"generation", &Parser::generation_statement},
        {"break", &Parser::loop_statement}, {"continue", &Parser::loop_statement}};
    for (const auto& [name, reader] : kReaders) {
      if (in_.is_name(name)) return (this->*reader)();
    }
    in_.fail_here(fmt::format("the tag '{}' is not supported", in_.current().text));
  }

  std::unique_ptr<Statement> if_statement() {
    auto node = make(StatementKind::kIf);
    in_.next();
    node->expression = in_.tuple(false);
    end_tag();
    node->body = statements({"elif", "else", "endif"});
    if (in_.is_name("elif")) {
      if (++nesting_ > kMaxNesting) in_.fail_here("too many branches of one if");
      node->otherwise.push_back(if_statement());  // ends the whole block
      --nesting_;
      return node;
    }
    if (in_.take_name("else")) {
      end_tag();
      node->otherwise = statements({"endif"});
    }
    end_block("endif");
    return node;
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool enclosed = in_.take_operator("(");
    do {
      names.push_back(in_.expect_any_name());
    } while (in_.take_operator(",") && in_.current().kind == TokenKind::kName &&
             !in_.is_name("in"));
    if (enclosed) in_.expect_operator(")");
    return names;
  }

  std::unique_ptr<Statement> for_statement() {
    auto node = make(StatementKind::kFor);
    in_.next();
    node->targets = targets();
    in_.expect_name("in");
    node->expression = in_.tuple(false);
    if (in_.take_name("if")) node->filter = in_.expression();
    if (in_.is_name("recursive")) in_.fail_here("recursive loops are not supported");
    end_tag();
    ++loops_;
    node->body = statements({"else", "endfor"});
    --loops_;
    if (in_.take_name("else")) {
      end_tag();
      node->otherwise = statements({"endfor"});
    }
    end_block("endfor");
    return node;
  }

  std::unique_ptr<Statement> loop_statement() {
    auto node = make(in_.is_name("break") ? StatementKind::kBreak : StatementKind::kContinue);
    if (loops_ == 0) in_.fail_here(fmt::format("'{}' outside of a loop", in_.current().text));
    in_.next();
    end_tag();
    return node;
  }

  std::unique_ptr<Statement> set_statement() {
    auto node = make(StatementKind::kSet);
    in_.next();
    node->targets = targets();
    if (in_.take_operator(".")) node->attribute = in_.expect_any_name();
    if (in_.take_operator("=")) {
      node->expression = in_.tuple();
      end_tag();
      return node;
    }
    node->kind = StatementKind::kSetBlock;
    if (node->targets.size() != 1 || !node->attribute.empty()) in_.fail_here("expected '='");
    if (in_.take_operator("|")) node->filter = in_.filters_of_block();
    end_tag();
    node->body = body_of("endset");
    return node;
  }

  // A body whose breaks belong to no loop around it.
  Block body_of(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block body = statements({end});
    loops_ = loops;
    end_block(end);
    return body;
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> all;
    in_.expect_operator("(");
    while (!in_.is_operator(")")) {
      Parameter parameter{in_.expect_any_name(), nullptr};
      if (in_.take_operator("=")) {
        parameter.value = in_.expression();
      } else if (!all.empty() && all.back().value != nullptr) {
        in_.fail_here("a parameter without a default follows one that has one");
      }
      all.push_back(std::move(parameter));
      if (!in_.is_operator(")")) in_.expect_operator(",");
    }
    in_.expect_operator(")");
    return all;
  }

  std::unique_ptr<Statement> macro_statement() {
    auto node = make(StatementKind::kMacro);
    in_.next();
    node->name = in_.expect_any_name();
    node->parameters = parameters();
    end_tag();
    node->body = body_of("endmacro");
    return node;
  }

  std::unique_ptr<Statement> call_statement() {
    auto node = make(StatementKind::kCallBlock);
    in_.next();
    if (in_.is_operator("(")) node->parameters = parameters();
    node->expression = in_.postfix_only();
    if (node->expression->kind != ExpressionKind::kCall) in_.fail_here("expected a call");
    end_tag();
    node->body = body_of("endcall");
    return node;
  }

  std::unique_ptr<Statement> filter_statement() {
    auto node = make(StatementKind::kFilterBlock);
    in_.next();
    node->filter = in_.filters_of_block();
    end_tag();
    node->body = body_of("endfilter");
    return node;
  }

  std::unique_ptr<Statement> with_statement() {
    auto node = make(StatementKind::kWith);
    in_.next();
    while (in_.current().kind != TokenKind::kBlockEnd) {
      std::string name = in_.expect_any_name();
      in_.expect_operator("=");
      node->parameters.push_back({std::move(name), in_.expression()});
      if (in_.current().kind != TokenKind::kBlockEnd) in_.expect_operator(",");
    }
    end_tag();
    node->body = statements({"endwith"});
    end_block("endwith");
    return node;
  }

  std::unique_ptr<Statement> generation_statement() {
    auto node = make(StatementKind::kScope);
    in_.next();
    end_tag();
    node->body = body_of("endgeneration");
    return node;
  }

  ExpressionParser in_;
  int nesting_ = 0, loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace kvc::jinja

// A template's text as tokens, with Jinja2's rules for white space: trim_blocks and lstrip_blocks
// on, the last newline dropped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvc::jinja {

enum class TokenKind {
  kData,
  kBlockBegin,
  kBlockEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of a string: its value
  int line = 0;
};

// Error with the line of what is malformed. Ends with a kEnd token.
std::vector<Token> tokenize(std::string_view source);

}  // namespace kvc::jinja

#include "model/chat/jinja_lexer.h"

#include <array>

#include "core/error.h"
#include "core/parse_number.h"
#include "model/chat/jinja_strings.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc::jinja {

namespace {

constexpr auto kNone = std::string_view::npos;

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F); }

// What Python's str.rstrip leaves.
std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const CodePoint code = code_point_before(text, text.size());
    if (!is_white_space(code.value) && !(code.value >= 0x1C && code.value <= 0x1F)) break;
    text.remove_suffix(code.length);
  }
  return text;
}

// Line ends become \n; the last one is dropped.
std::string normalized(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool is_pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!is_pair) text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_root();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_here(const std::string& what) const { fail("line {}: {}", line_, what); }

  bool sees(std::string_view text, std::size_t offset = 0) const {
    return std::string_view(source_)
        .substr(std::min(at_ + offset, source_.size()))
        .starts_with(text);
  }

  void advance(std::size_t count) {
    for (const char c : std::string_view(source_).substr(at_, count)) line_ += c == '\n';
    at_ += count;
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void skip_space() {
    while (at_ < source_.size() && is_space(source_[at_])) advance(1);
  }

  // `-END` also takes the white space behind it, `END` the line end if `trim`.
  bool take_end(std::string_view end, bool trim) {
    const bool minus = sees("-") && sees(end, 1), plus = trim && sees("+") && sees(end, 1);
    if (!minus && !plus && !sees(end)) return false;
    const std::size_t begin = at_;
    advance(end.size() + (minus || plus ? 1 : 0));
    if (minus) skip_space();
    if (trim && !minus && !plus && sees("\n")) advance(1);
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
    return true;
  }

  // The data before a tag, without what the tag's sign or lstrip_blocks takes away.
  void add_data(std::string_view data, char sign, bool strips_line) {
    if (sign == '-') {
      data = without_trailing_space(data);
    } else if (sign != '+' && strips_line) {
      const auto newline = data.rfind('\n');
      const std::size_t begin = newline == kNone ? 0 : newline + 1;
      if ((begin > 0 || line_starting_) && data.find_first_not_of(" \t\r\v\f", begin) == kNone) {
        data = data.substr(0, begin);
      }
    }
    if (!data.empty()) add(TokenKind::kData, std::string(data));
  }

  void read_root() {
    std::size_t tag = at_;
    const auto begins_tag = [&](std::size_t i) {
      return source_[i] == '{' && i + 1 < source_.size() &&
             (source_[i + 1] == '%' || source_[i + 1] == '{' || source_[i + 1] == '#');
    };
    while (tag < source_.size() && !begins_tag(tag)) ++tag;
    const std::string_view data = std::string_view(source_).substr(at_, tag - at_);
    if (tag == source_.size()) {
      add_data(data, '+', false);
      return advance(data.size());
    }
    const char kind = source_[tag + 1];
    const char next = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    add_data(data, sign, kind != '{');
    advance(data.size() + 2 + (sign == '\0' ? 0 : 1));
    line_starting_ = false;
    if (kind == '#') return read_comment();
    if (kind == '%' && read_raw()) return;
    read_tag(kind == '%');
  }

  void read_comment() {
    while (at_ < source_.size()) {
      if (take_end("#}", true)) return;
      advance(1);
    }
    fail_here("a comment is not closed, expected #}");
  }

  // Behind `{%`: whether it opens a raw block, which then is read to its end.
  bool read_raw() {
    std::size_t i = at_;
    const auto skip = [&] {
      while (i < source_.size() && is_space(source_[i])) ++i;
    };
    skip();
    if (source_.compare(i, 3, "raw") != 0) return false;
    i += 3;
    skip();
    if (source_.compare(i, 2, "%}") != 0 && source_.compare(i, 3, "-%}") != 0) return false;
    advance(i - at_);
    take_end("%}", false);
    for (std::size_t tag = at_; (tag = source_.find("{%", tag)) != kNone; tag += 2) {
      std::size_t name = tag + 2;
      const char sign = source_[name];
      if (sign == '-' || sign == '+') ++name;
      while (name < source_.size() && is_space(source_[name])) ++name;
      if (source_.compare(name, 6, "endraw") != 0) continue;
      add_data(std::string_view(source_).substr(at_, tag - at_), sign, true);
      advance(name + 6 - at_);
      skip_space();
      if (!take_end("%}", true)) fail_here("endraw is not closed, expected %}");
      return true;
    }
    fail_here("a raw block is not closed, expected {% endraw %}");
  }

  void read_tag(bool is_block) {
    const std::string_view end = is_block ? "%}" : "}}";
    add(is_block ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, "");
    std::string open;  // brackets that are not closed yet
    while (true) {
      skip_space();
      if (at_ >= source_.size()) fail_here(fmt::format("a tag is not closed, expected {}", end));
      const int line = line_;
      if (open.empty() && take_end(end, is_block)) {
        tokens_.push_back({is_block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, "", line});
        return;
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = source_[at_];
    if (is_digit(c)) return read_number();
    if (is_name_start(c)) {
      std::size_t end = at_;
      while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
      add(TokenKind::kName, source_.substr(at_, end - at_));
      return advance(end - at_);
    }
    if (c == '\'' || c == '"') return read_string(c);
    static constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view text : kOperators) {
      if (!sees(text)) continue;
      check_brackets(c, open);
      add(TokenKind::kOperator, std::string(text));
      return advance(text.size());
    }
    const std::size_t length = code_point_at(source_, at_).length;
    fail_here(fmt::format("unexpected character '{}'", source_.substr(at_, length)));
  }

  void check_brackets(char c, std::string& open) const {
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : static_cast<char>(c + 2);
    if (c != ')' && c != ']' && c != '}') return;
    if (open.empty() || open.back() != c) fail_here(fmt::format("unexpected '{}'", c));
    open.pop_back();
  }

  void read_number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && is_digit(source_[end])) ++end;
    };
    digits();
    bool is_float = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' &&
        is_digit(source_[end + 1])) {
      is_float = true;
      ++end;
      digits();
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-'))
        ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        is_float = true;
        end = exponent;
        digits();
      }
    }
    if (end < source_.size() && is_name_start(source_[end])) {
      fail_here(fmt::format("the number {} is not supported", source_.substr(at_, end + 1 - at_)));
    }
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, source_.substr(at_, end - at_));
    advance(end - at_);
  }

  void read_string(char quote) {
    std::string value;
    const int line = line_;
    std::size_t i = at_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] == '\\' && i + 1 < source_.size()) {
        i = read_escape(i + 1, value);
      } else {
        value += source_[i++];
      }
    }
    if (i >= source_.size()) fail_here("a string is not closed");
    advance(i + 1 - at_);
    tokens_.push_back({TokenKind::kString, std::move(value), line});
  }

  // source_[i] follows a backslash; the position behind the escape.
  std::size_t read_escape(std::size_t i, std::string& value) const {
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[i];
    const auto letter = kLetters.find(c);
    if (letter != kNone) {
      value += kValues[letter];
      return i + 1;
    }
    if (c == '\n') return i + 1;
    std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, base = 16, begin = i + 1;
    if (c >= '0' && c <= '7') {
      base = 8;
      begin = i;
      while (count < 3 && i + count < source_.size() && source_[i + count] >= '0' &&
             source_[i + count] <= '7')
        ++count;
    } else if (count == 0) {
      if (c == 'N') fail_here("the escape \\N is not supported");
      value += '\\';
      return i;
    }
    unsigned long code = 0;
    const std::string digits = source_.substr(begin, count);
    if (!parse_number(digits, code, static_cast<int>(base)) || digits.size() != count ||
        code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail_here("a string has a malformed escape");
    }
    append_utf8(value, static_cast<char32_t>(code));
    return begin + count;
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(normalized(source)).run(); }

}  // namespace kvc::jinja

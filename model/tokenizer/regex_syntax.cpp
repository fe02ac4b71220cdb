#include "model/tokenizer/regex.h"

#include <iterator>
#include <map>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr std::size_t kMaxPatternBytes = 64 << 10;
constexpr std::size_t kMaxExpandedBytes = 8 << 20;

// The members of a bracketed class.
std::string class_members(const std::vector<CodePointRange>& ranges) {
  std::string text;
  for (const CodePointRange& range : ranges) {
    fmt::format_to(std::back_inserter(text), "\\x{{{:X}}}",
                   static_cast<std::uint32_t>(range.first));
    if (range.first == range.last) continue;
    fmt::format_to(std::back_inserter(text), "-\\x{{{:X}}}",
                   static_cast<std::uint32_t>(range.last));
  }
  return text;
}

// Reads the pattern once, left to right.
class Expander {
 public:
  Expander(std::string_view pattern, const std::string& subject)
      : pattern_(pattern), subject_(subject), ignores_case_(has_option('i')) {}

  std::string expand() {
    while (position_ < pattern_.size()) {
      step();
      KVC_CHECK(result_.size() <= kMaxExpandedBytes,
                "{}: the pattern of {} bytes names too many classes", subject_, pattern_.size());
    }
    return std::move(result_);
  }

 private:
  std::string_view rest() const { return pattern_.substr(position_); }

  void copy(std::size_t count) {
    result_ += pattern_.substr(position_, count);
    position_ += count;
  }

  void step() {
    if (rest().starts_with('\\') && rest().size() > 1) return escape(rest()[1]);
    if (class_depth_ > 0 && rest().starts_with("[:")) return posix_bracket();
    if (rest().starts_with('[')) return open_class();
    if (class_depth_ > 0 && rest().starts_with(']')) --class_depth_;
    if (class_depth_ == 0 && rest().starts_with("(?")) return group();
    copy(1);
  }

  void escape(char kind) {
    const bool in_class = class_depth_ > 0;
    if ((kind == 'p' || kind == 'P') && rest().substr(2).starts_with('{')) return property(kind);
    if (kind == 'w' || kind == 'W') return shorthand("Word", kind == 'W');
    if (kind == 'd' || kind == 'D') return shorthand("Nd", kind == 'D');
    if (!in_class && (kind == 'b' || kind == 'B')) return word_boundary(kind == 'B');
    if (!in_class && (kind == 'X' || kind == 'y' || kind == 'Y')) refuse(rest().substr(0, 2));
    copy(2);
  }

  [[noreturn]] void refuse(std::string_view construct) const {
    fail("{}: \"{}\" in the pattern is not supported; spell it out with \\p{{...}} or [...]",
         subject_, construct);
  }

  void property(char kind) {
    const std::size_t close = rest().find('}');
    if (close == std::string_view::npos) return copy(2);
    const std::string_view construct = rest().substr(0, close + 1);
    std::string_view name = construct.substr(3, close - 3);
    const bool inverted = name.starts_with('^');
    if (inverted) name.remove_prefix(1);
    put(set_of(name, inverted != (kind == 'P'), construct));
    position_ += construct.size();
  }

  void shorthand(std::string_view name, bool negated) {
    put(set_of(name, negated, name));
    position_ += 2;
  }

  // "[...]" with everything spelled out.
  const std::string& set_of(std::string_view name, bool negated, std::string_view construct) {
    const bool in_class = class_depth_ > 0;
    const std::string key = fmt::format("{}{}{}", in_class ? "[" : "", negated ? "^" : "", name);
    const auto found = sets_.find(key);
    if (found != sets_.end()) return found->second;
    auto ranges = property_ranges(name, in_class);
    if (!ranges) refuse(construct);
    if (negated) ranges = complement(*ranges);
    return sets_[key] = fmt::format("[{}]", class_members(*ranges));
  }

  // Case never matters to a bare property, but to a class it does.
  void put(const std::string& set) {
    result_ += class_depth_ == 0 && ignores_case_ ? fmt::format("(?-i:{})", set) : set;
  }

  void word_boundary(bool negated) {
    const std::string& word = set_of("Word", false, "\\b");
    const char* form =
        negated ? "(?:(?<={0})(?={0})|(?<!{0})(?!{0}))" : "(?:(?<={0})(?!{0})|(?<!{0})(?={0}))";
    result_ += fmt::format(fmt::runtime(form), word);
    position_ += 2;
  }

  void open_class() {
    ++class_depth_;
    copy(rest().substr(1).starts_with('^') ? 2 : 1);
    if (rest().starts_with(']') && rest().find(']', 1) != std::string_view::npos) {
      result_ += '\\';  // it is a member when it comes first
      copy(1);
    }
  }

  void posix_bracket() {
    const std::size_t close = rest().find(":]");
    if (close == std::string_view::npos || rest().substr(2, close).find('[') < close) {
      return open_class();
    }
    const std::string_view construct = rest().substr(0, close + 2);
    std::string_view name = construct.substr(2, close - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    if (name == "xdigit" || name == "ascii" || name == "space") return copy(construct.size());
    if (name != "alpha" && name != "digit") refuse(construct);
    put(set_of(name, negated, construct));
    position_ += construct.size();
  }

  // Letters after "(?" at `position`, up to what ends them.
  static std::string_view options_at(std::string_view pattern, std::size_t position) {
    const std::size_t begin = position + 2;
    const std::size_t end =
        pattern.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-", begin);
    if (end == std::string_view::npos) return {};
    if (pattern[end] == '{') return pattern.substr(begin, end - begin);  // (?y{g})
    return pattern[end] == ':' || pattern[end] == ')' ? pattern.substr(begin, end - begin)
                                                      : std::string_view();
  }

  bool has_option(char option) const {
    for (std::size_t at = 0; (at = pattern_.find("(?", at)) != std::string_view::npos; ++at) {
      if (options_at(pattern_, at).find(option) != std::string_view::npos) return true;
    }
    return false;
  }

  void group() {
    if (rest().starts_with("(?#")) {
      const std::size_t close = rest().find(')');
      return copy(close == std::string_view::npos ? rest().size() : close + 1);
    }
    const std::string_view options = options_at(pattern_, position_);
    const bool known = options.find_first_not_of("imx-") == std::string_view::npos;
    if (!known || rest().starts_with("(?{")) refuse(rest().substr(0, options.size() + 3));
    copy(2);
  }

  std::string_view pattern_;
  const std::string& subject_;
  bool ignores_case_;
  std::size_t position_ = 0;
  int class_depth_ = 0;
  std::map<std::string, std::string> sets_;
  std::string result_;
};

}  // namespace

std::string expand_unicode_classes(const std::string& pattern, const std::string& subject) {
  KVC_CHECK(pattern.size() <= kMaxPatternBytes, "{}: a pattern of {} bytes, expected at most {}",
            subject, pattern.size(), kMaxPatternBytes);
  KVC_CHECK(!first_invalid_utf8(pattern), "{}: the pattern is not UTF-8", subject);
  return Expander(pattern, subject).expand();
}

}  // namespace kvc

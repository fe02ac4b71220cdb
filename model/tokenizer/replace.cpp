#include "model/tokenizer/replace.h"

namespace kvc {

std::string Replacement::apply(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t match; (match = text.find(pattern, begin)) != std::string_view::npos;) {
    result += text.substr(begin, match - begin);
    result += content;
    begin = match + pattern.size();
  }
  result += text.substr(begin);
  return result;
}

Replacement read_replacement(const TokenizerJson& json, const std::string& subject) {
  const auto pattern = component_value<TokenizerJson>(json, "pattern", subject);
  KVC_CHECK(pattern.is_object() && pattern.size() == 1, "{}: \"pattern\" is not one pattern",
            subject);
  KVC_CHECK(pattern.contains("String"),
            "{}: pattern kind \"{}\" is not supported; supported: String", subject,
            pattern.begin().key());
  Replacement replacement{component_value<std::string>(pattern, "String", subject),
                          component_value<std::string>(json, "content", subject)};
  KVC_CHECK(!replacement.pattern.empty(), "{}: the pattern is empty", subject);
  return replacement;
}

}  // namespace kvc

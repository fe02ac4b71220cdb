#include "model/tokenizer/component.h"

#include "model/tokenizer/utf8.h"

namespace kvc {

char32_t component_character(const TokenizerJson& json, std::string_view key,
                             const std::string& subject) {
  const auto text = component_value<std::string>(json, key, subject);
  const bool single = !text.empty() && code_point_at(text, 0).length == text.size();
  KVC_CHECK(single, "{}: \"{}\" is \"{}\", expected one character", subject, key, text);
  return code_point_at(text, 0).value;
}

}  // namespace kvc

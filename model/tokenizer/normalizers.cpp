#include "model/tokenizer/normalizers.h"

#include "model/tokenizer/replace.h"

namespace kvc {

namespace {

TextNormalizer make_prepend(const TokenizerJson& json, const std::string& subject) {
  return [prefix = component_value<std::string>(json, "prepend", subject)](std::string text) {
    return text.empty() ? text : prefix + text;
  };
}

TextNormalizer make_replace(const TokenizerJson& json, const std::string& subject) {
  return [replacement = read_replacement(json, subject)](const std::string& text) {
    return replacement.apply(text);
  };
}

TextNormalizer make_normalizers(const TokenizerJson& json, const std::string& subject) {
  return make_sequence<TextNormalizer>(json, "normalizers", make_normalizer, subject);
}

constexpr ComponentRow<TextNormalizer> kNormalizers[] = {
    {"Prepend", make_prepend},
    {"Replace", make_replace},
    {"Sequence", make_normalizers},
};

}  // namespace

TextNormalizer make_normalizer(const TokenizerJson& json, const std::string& subject) {
  return make_component<TextNormalizer>(json, kNormalizers, subject);
}

}  // namespace kvc

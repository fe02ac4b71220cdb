#include "model/tokenizer/parts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "model/tokenizer/aligned_text.h"
#include "model/tokenizer/text_pattern.h"
#include "model/tokenizer/unicode.h"

namespace kvc {

namespace {

TextNormalizer make_prepend(const TokenizerJson& json, const std::string& subject) {
  return [prefix = component_value<std::string>(json, "prepend", subject)](AlignedText& aligned,
                                                                           SearchBudget&) {
    if (aligned.text.empty()) return;
    aligned.text.insert(0, prefix);
    if (aligned.first_end > 0) aligned.first_end += prefix.size();
  };
}

TextNormalizer make_replace(const TokenizerJson& json, const std::string& subject) {
  return [replacement = std::make_shared<const Replacement>(json, subject)](
             AlignedText& aligned, SearchBudget& budget) { replacement->apply(aligned, budget); };
}

template <UnicodeForm form>
TextNormalizer make_form(const TokenizerJson&, const std::string&) {
  return [](AlignedText& aligned, SearchBudget&) {
    const std::string_view text = aligned.text;
    const std::size_t first_end = to_unicode_form(text.substr(0, aligned.first_end), form).size();
    aligned.text = to_unicode_form(text, form);
    aligned.first_end = std::min(first_end, aligned.text.size());
  };
}

TextNormalizer make_lowercase(const TokenizerJson&, const std::string&) {
  return [](AlignedText& aligned, SearchBudget&) {
    map_characters(aligned, [](char32_t code_point, std::string& result) {
      append_lowercase(result, code_point);
    });
  };
}

TextNormalizer make_strip_accents(const TokenizerJson&, const std::string&) {
  return [](AlignedText& aligned, SearchBudget&) {
    map_characters(aligned, [](char32_t code_point, std::string& result) {
      if (!is_combining_mark(code_point)) append_utf8(result, code_point);
    });
  };
}

TextNormalizer make_strip(const TokenizerJson& json, const std::string& subject) {
  const bool left = component_value<bool>(json, "strip_left", subject);
  const bool right = component_value<bool>(json, "strip_right", subject);
  return [left, right](AlignedText& aligned, SearchBudget&) {
    std::string& text = aligned.text;
    const std::size_t begin = left ? white_space_end(text, 0) : 0;
    const std::size_t end = right ? white_space_begin(text, text.size(), begin) : text.size();
    text = text.substr(begin, end - begin);
    aligned.first_end =
        std::min(aligned.first_end - std::min(aligned.first_end, begin), text.size());
  };
}

// Control characters go; everything like a space becomes one.
void append_nmt(char32_t code, std::string& result) {
  const bool removed = (code >= 0x1 && code <= 0x8) || code == 0xB ||
                       (code >= 0xE && code <= 0x1F) || code == 0x7F || code == 0x8F ||
                       code == 0x9F;
  if (removed) return;
  const bool space = code == 0x9 || code == 0xA || code == 0xC || code == 0xD || code == 0x1680 ||
                     (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 ||
                     code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
  append_utf8(result, space ? U' ' : code);
}

TextNormalizer make_nmt(const TokenizerJson&, const std::string&) {
  return [](AlignedText& aligned, SearchBudget&) { map_characters(aligned, append_nmt); };
}

TextNormalizer make_byte_level(const TokenizerJson&, const std::string&) {
  return [](AlignedText& aligned, SearchBudget&) {
    const std::string_view text = aligned.text;
    const std::size_t first_end = bytes_to_characters(text.substr(0, aligned.first_end)).size();
    aligned = {bytes_to_characters(text), first_end};
  };
}

TextNormalizer make_normalizers(const TokenizerJson& json, const std::string& subject) {
  return [members = make_members<TextNormalizer>(json, "normalizers", make_normalizer, subject)](
             AlignedText& aligned, SearchBudget& budget) {
    for (const TextNormalizer& member : members) member(aligned, budget);
  };
}

constexpr ComponentRow<TextNormalizer> kNormalizers[] = {
    {"ByteLevel", make_byte_level},
    {"Lowercase", make_lowercase},
    {"NFC", make_form<UnicodeForm::kNfc>},
    {"NFD", make_form<UnicodeForm::kNfd>},
    {"NFKC", make_form<UnicodeForm::kNfkc>},
    {"NFKD", make_form<UnicodeForm::kNfkd>},
    {"Nmt", make_nmt},
    {"Prepend", make_prepend},
    {"Replace", make_replace},
    {"Sequence", make_normalizers},
    {"Strip", make_strip},
    {"StripAccents", make_strip_accents},
};

}  // namespace

TextNormalizer make_normalizer(const TokenizerJson& json, const std::string& subject) {
  return make_component<TextNormalizer>(json, kNormalizers, subject);
}

}  // namespace kvc

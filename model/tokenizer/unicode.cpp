#include "model/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <span>

#include "model/tokenizer/unicode_ranges.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr bool contains(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), code_point,
      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != ranges.begin() && code_point <= (after - 1)->last;
}

constexpr CharacterClass search_class(char32_t code_point) {
  if (contains(kLetterRanges, code_point)) return CharacterClass::kLetter;
  if (contains(kNumberRanges, code_point)) return CharacterClass::kNumber;
  if (contains(kWhiteSpaceRanges, code_point)) return CharacterClass::kWhiteSpace;
  return CharacterClass::kOther;
}

constexpr std::size_t kNumDirect = 256;

constexpr std::array<CharacterClass, kNumDirect> make_direct_classes() {
  std::array<CharacterClass, kNumDirect> classes{};
  for (std::size_t i = 0; i < kNumDirect; ++i) classes[i] = search_class(static_cast<char32_t>(i));
  return classes;
}

constexpr std::array<CharacterClass, kNumDirect> kDirectClasses = make_direct_classes();

}  // namespace

CharacterClass character_class(char32_t code_point) {
  return code_point < kNumDirect ? kDirectClasses[code_point] : search_class(code_point);
}

bool is_white_space(char32_t code_point) { return contains(kWhiteSpaceRanges, code_point); }

bool is_word_character(char32_t code_point) { return contains(kWordRanges, code_point); }

bool is_numeric(char32_t code_point) { return contains(kNumericRanges, code_point); }

bool is_punctuation(char32_t code_point) { return contains(kPunctuationRanges, code_point); }

bool is_combining_mark(char32_t code_point) { return contains(kCombiningMarkRanges, code_point); }

bool is_normalizing(char32_t code_point) { return contains(kNormalizingRanges, code_point); }

void append_lowercase(std::string& text, char32_t code_point) {
  constexpr char32_t kDottedCapitalI = 0x130;
  if (code_point == kDottedCapitalI) {
    text += "i\u0307";  // the only one whose lower case is two characters
    return;
  }
  const auto after = std::upper_bound(
      std::begin(kLowercaseRanges), std::end(kLowercaseRanges), code_point,
      [](char32_t value, const LowercaseRange& range) { return value < range.first; });
  if (after != std::begin(kLowercaseRanges)) {
    const LowercaseRange& range = *(after - 1);
    if (code_point <= range.last && (code_point - range.first) % range.step == 0) {
      code_point = static_cast<char32_t>(static_cast<int>(code_point) + range.difference);
    }
  }
  append_utf8(text, code_point);
}

}  // namespace kvc

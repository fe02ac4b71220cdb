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

bool contains(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), code_point,
      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != ranges.begin() && code_point <= (after - 1)->last;
}

const std::vector<CodePointRange>& letters() {
  static const std::vector<CodePointRange> ranges = property_ranges("L", false).value();
  return ranges;
}

const std::vector<CodePointRange>& numbers() {
  static const std::vector<CodePointRange> ranges = property_ranges("N", false).value();
  return ranges;
}

const std::vector<CodePointRange>& words() {
  static const std::vector<CodePointRange> ranges = property_ranges("Word", false).value();
  return ranges;
}

CharacterClass search_class(char32_t code_point) {
  if (contains(letters(), code_point)) return CharacterClass::kLetter;
  if (contains(numbers(), code_point)) return CharacterClass::kNumber;
  if (contains(kWhiteSpaceRanges, code_point)) return CharacterClass::kWhiteSpace;
  return CharacterClass::kOther;
}

constexpr std::size_t kNumDirect = 256;

std::array<CharacterClass, kNumDirect> make_direct_classes() {
  std::array<CharacterClass, kNumDirect> classes{};
  for (std::size_t i = 0; i < kNumDirect; ++i) classes[i] = search_class(static_cast<char32_t>(i));
  return classes;
}

}  // namespace

CharacterClass character_class(char32_t code_point) {
  static const std::array<CharacterClass, kNumDirect> direct = make_direct_classes();
  return code_point < kNumDirect ? direct[code_point] : search_class(code_point);
}

bool is_white_space(char32_t code_point) { return contains(kWhiteSpaceRanges, code_point); }

bool is_word_character(char32_t code_point) {
  return contains(words(), code_point) != contains(kWordDifferences, code_point);
}

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

std::size_t white_space_begin(std::string_view text, std::size_t end, std::size_t lowest) {
  while (end > lowest) {
    const CodePoint code = code_point_before(text, end);
    if (!is_white_space(code.value)) break;
    end -= code.length;
  }
  return end;
}

std::size_t white_space_end(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const CodePoint code = code_point_at(text, begin);
    if (!is_white_space(code.value)) break;
    begin += code.length;
  }
  return begin;
}

}  // namespace kvc

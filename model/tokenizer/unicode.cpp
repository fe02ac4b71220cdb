#include "model/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "model/tokenizer/unicode_ranges.h"

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

}  // namespace kvc

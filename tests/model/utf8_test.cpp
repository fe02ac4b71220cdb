#include "model/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include "model/tokenizer/unicode.h"

namespace kvc {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

std::string replacements(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += kReplacement;
  return text;
}

TEST(Utf8, EveryScalarSurvives) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(text, code);
    ASSERT_FALSE(first_invalid_utf8(text)) << text;
    ASSERT_EQ(code_point_at(text, 0).value, code);
    ASSERT_EQ(code_point_before(text, text.size()).value, code);
  }
}

// Unicode standard, "U+FFFD substitution of maximal subparts", tables 3-8 to 3-11.
TEST(Utf8, ReplacesEachMaximalSubpartOnce) {
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), replacements(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), replacements(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            replacements(5) + "A" + replacements(2) + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), replacements(4) + "A");
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(first_invalid_utf8("ab\xC3\xA9"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("ab\xC3"), 2u);
  EXPECT_EQ(first_invalid_utf8("\xED\xA0\x80"), 0u);
}

TEST(Unicode, ClassesOfTypicalCharacters) {
  EXPECT_EQ(character_class('a'), CharacterClass::kLetter);
  EXPECT_EQ(character_class(0x4E2D), CharacterClass::kLetter);
  EXPECT_EQ(character_class('7'), CharacterClass::kNumber);
  EXPECT_EQ(character_class(0x2160), CharacterClass::kNumber);  // Roman numeral one
  EXPECT_EQ(character_class(0x3000), CharacterClass::kWhiteSpace);
  EXPECT_EQ(character_class(0x180E), CharacterClass::kOther);   // Mongolian vowel separator
  EXPECT_EQ(character_class(0x0301), CharacterClass::kOther);   // combining acute accent
  EXPECT_EQ(character_class(0x1C89), CharacterClass::kLetter);  // new in Unicode 16
  EXPECT_TRUE(is_word_character(0x0301));
  EXPECT_TRUE(is_word_character('_'));
  EXPECT_FALSE(is_word_character('-'));
}

}  // namespace
}  // namespace kvc

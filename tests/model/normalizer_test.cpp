#include "model/tokenizer/parts.h"

#include <gtest/gtest.h>

#include "model/tokenizer/aligned_text.h"
#include "model/tokenizer/component.h"
#include "model/tokenizer/unicode.h"

namespace kvc {
namespace {

AlignedText normalized(const TokenizerJson& json, const std::string& text, std::size_t first_end) {
  AlignedText aligned{text, first_end};
  SearchBudget budget(text.size());
  make_normalizer(json, "test")(aligned, budget);
  return aligned;
}

std::string normalized(const TokenizerJson& json, const std::string& text) {
  return normalized(json, text, 0).text;
}

TEST(UnicodeForms, OfTypicalTexts) {
  EXPECT_EQ(to_unicode_form("cafe\u0301", UnicodeForm::kNfc), "caf\u00E9");
  EXPECT_EQ(to_unicode_form("caf\u00E9", UnicodeForm::kNfd), "cafe\u0301");
  EXPECT_EQ(to_unicode_form("\uFB01\u00B2", UnicodeForm::kNfkc), "fi2");
  EXPECT_EQ(to_unicode_form("\u1100\u1161\u11A8", UnicodeForm::kNfc), "\uAC01");
  EXPECT_EQ(to_unicode_form("a\u0345\u0323\u0301", UnicodeForm::kNfd), "a\u0323\u0301\u0345");
  EXPECT_EQ(to_unicode_form("\u212B", UnicodeForm::kNfkd), "A\u030A");
}

// Its tables are of Unicode 9; U+11938 came with 13, U+32FF with 12.1.
TEST(UnicodeForms, LaterCharactersStay) {
  EXPECT_EQ(to_unicode_form("\U00011938", UnicodeForm::kNfd), "\U00011938");
  EXPECT_EQ(to_unicode_form("\U00011935\U00011930", UnicodeForm::kNfc), "\U00011935\U00011930");
  EXPECT_EQ(to_unicode_form("\u32FF", UnicodeForm::kNfkc), "\u32FF");
}

// Sorting by exchange of neighbours would take minutes.
TEST(UnicodeForms, ManyMarks) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  EXPECT_EQ(to_unicode_form(text, UnicodeForm::kNfd).substr(0, 5), "a\u0323\u0323");
}

TEST(Normalizers, Lowercase) {
  EXPECT_EQ(normalized({{"type", "Lowercase"}}, "\u0130A\u03A3\u1E9Eb"), "i\u0307a\u03C3\u00DFb");
}

TEST(Normalizers, ReplaceWithARegex) {
  const TokenizerJson json = {
      {"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "_"}};
  EXPECT_EQ(normalized(json, "a   b c  "), "a_b c_");
}

TEST(Normalizers, StripAccents) {
  const TokenizerJson json = {{"type", "Sequence"},
                              {"normalizers", {{{"type", "NFD"}}, {{"type", "StripAccents"}}}}};
  EXPECT_EQ(normalized(json, "\u00E9\u00E0!"), "ea!");
}

// What stands for the first character that was typed decides where Metaspace prepends.
TEST(Normalizers, FollowTheFirstCharacter) {
  const TokenizerJson strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  EXPECT_EQ(normalized(strip, " ab ", 1).first_end, 0u);
  EXPECT_EQ(normalized(strip, "ab ", 1).first_end, 1u);
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "__"}}, "ab", 1).first_end, 3u);
  EXPECT_EQ(normalized({{"type", "NFKD"}}, "\u00BDx", 2).first_end, 5u);  // 1, fraction slash, 2
  const TokenizerJson replace = {
      {"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "x"}};
  EXPECT_EQ(normalized(replace, "abc", 1).first_end, 0u);
  EXPECT_EQ(normalized(replace, "cab", 1).first_end, 1u);
}

}  // namespace
}  // namespace kvc

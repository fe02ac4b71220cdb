#include "model/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/error_of.h"

namespace kvc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Matches in brackets, what lies between them as it is.
std::vector<std::string> segments(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern, "test");
  SearchBudget budget(text.size());
  std::vector<TextSegment> found;
  regex.find_all(text, budget, found);
  std::vector<std::string> result;
  for (const TextSegment& segment : found) {
    const std::string part = text.substr(segment.begin, segment.end - segment.begin);
    result.push_back(segment.is_match ? "[" + part + "]" : part);
  }
  return result;
}

std::string message_of(const std::string& pattern) {
  return error_of([&] { const Regex regex(pattern, "test"); });
}

TEST(Regex, MatchesAndWhatLiesBetween) {
  EXPECT_THAT(segments("b+", "abbcb"), ElementsAre("a", "[bb]", "c", "[b]"));
  EXPECT_THAT(segments("x", "abc"), ElementsAre("abc"));
}

TEST(Regex, EmptyMatchesOnlyWhereNoMatchEnded) {
  EXPECT_THAT(segments("b*", "abc\u00E9"),
              ElementsAre("[]", "a", "[b]", "c", "[]", "\u00E9", "[]"));
  EXPECT_THAT(segments("^", "ab"), ElementsAre("[]", "ab"));
}

TEST(Regex, UnicodeClassesAreThoseOfTheLibrary) {
  EXPECT_THAT(segments(R"(\p{L}+)", "a\u1C89 b"), ElementsAre("[a\u1C89]", " ", "[b]"));
  EXPECT_THAT(segments(R"(\p{^Lu}|\P{L})", "aB1"), ElementsAre("[a]", "B", "[1]"));
  EXPECT_THAT(segments(R"([^\s\p{L}\d]+)", "a!? 7"), ElementsAre("a", "[!?]", " 7"));
  EXPECT_THAT(segments(R"([\p{Lo}&&[^\p{Han}]]+)", "\u4E2D\u30AB"),
              ElementsAre("\u4E2D", "[\u30AB]"));
  EXPECT_THAT(segments(R"(\p{Uppercase_Letter}|[[:digit:]])", "aB\u0663"),
              ElementsAre("a", "[B]", "[\u0663]"));
  EXPECT_THAT(segments(R"(\w+\b)", "a_1\u0301-b"), ElementsAre("[a_1\u0301]", "-", "[b]"));
}

// An oddity of Oniguruma, which the library shares.
TEST(Regex, WordsInClasses) {
  EXPECT_THAT(segments(R"(\w)", "\u00B2"), ElementsAre("[\u00B2]"));
  EXPECT_THAT(segments(R"([\w])", "\u00B2"), ElementsAre("\u00B2"));
  EXPECT_THAT(segments(R"([^\w])", "\u00B2"), ElementsAre("[\u00B2]"));
}

TEST(Regex, CaseIsIgnoredWhereThePatternSaysSo) {
  EXPECT_THAT(segments("(?i:'s)|s", "'S S\u017Fs'\u017F"),
              ElementsAre("['S]", " S\u017F", "[s]", "['\u017F]"));
  // A class also takes other cases of its members, a property by itself does not.
  EXPECT_THAT(segments(R"((?i:\p{Lu}))", "aB"), ElementsAre("a", "[B]"));
  EXPECT_THAT(segments(R"((?i:[\p{Lu}]))", "aB"), ElementsAre("[a]", "[B]"));
}

TEST(Regex, ABracketThatComesFirstIsAMember) {
  EXPECT_THAT(segments(R"([]\p{Nd}]+)", "a]1["), ElementsAre("a", "[]1]", "["));
}

TEST(Regex, ASpentBudgetIsNotUnlimited) {
  const Regex regex("(?:a|a)*b|.", "test");
  SearchBudget budget(0);
  budget.charge(budget.left());
  std::vector<TextSegment> segments;
  EXPECT_THAT(error_of([&] { regex.find_all(std::string(60, 'a'), budget, segments); }),
              ::testing::HasSubstr("takes too long"));
}

TEST(Regex, Refusals) {
  EXPECT_THAT(message_of("(a"), HasSubstr("end pattern with unmatched parenthesis"));
  EXPECT_THAT(message_of(R"(\p{Klingon})"), HasSubstr(R"("\p{Klingon}")"));
  EXPECT_THAT(message_of("[[:punct:]]"), HasSubstr("\"[:punct:]\""));
  EXPECT_THAT(message_of(std::string(100'000, 'a')), HasSubstr("100000 bytes"));
  EXPECT_THAT(message_of(std::string(3000, '(')), HasSubstr("..."));
}

}  // namespace
}  // namespace kvc

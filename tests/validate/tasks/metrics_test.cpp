#include <gmock/gmock.h>

#include "validate/tasks/string_match.h"
#include "validate/tasks/text_metrics.h"

namespace kvc {
namespace {

TaskQuestion asked(std::vector<std::string> answers) {
  return {.text = "", .answers = std::move(answers)};
}

TEST(StringMatch, AllIsTheShareOfAnswers) {
  const TaskQuestion question = asked({"123", "Abc", "456", "78"});
  EXPECT_EQ(match_all("They are 123, aBC and 4567.", question), 75);
  EXPECT_EQ(match_all("", question), 0);
  EXPECT_EQ(match_any("xx 78 xx", question), 100);
  EXPECT_EQ(match_any("7 8", question), 0);
}

TEST(StringMatch, LeadingWordsEndAtTheFirstDifference) {
  const TaskQuestion question = asked({"river road hill lake"});
  EXPECT_EQ(leading_words(" river road hill lake more", question), 100);
  EXPECT_EQ(leading_words("river, Road. sea lake", question), 50);
  EXPECT_EQ(leading_words("road river", question), 0);
  EXPECT_EQ(leading_words(" 42, blue", asked({"42"})), 100);
  EXPECT_EQ(leading_words(" 420", asked({"42"})), 0);
}

// Output words: quick brown fox ran (4), answer's: quick fox ran away home (5); 3 are common: 2 * 3 / 9.
TEST(TextMetrics, WordF1) {
  EXPECT_DOUBLE_EQ(word_f1("The quick, brown fox ran!", "a quick fox ran away home"), 200.0 / 3);
  EXPECT_EQ(word_f1("the", "an"), 0);
  EXPECT_EQ(word_f1("Yes.", "yes"), 100);
  // "no" counts once of the three times: 2 * 1 / 4.
  EXPECT_EQ(word_f1("no no no", "no"), 50);
  // As lower(), split() and the \b of Python.
  EXPECT_EQ(word_f1("MÉXICO", "México"), 100);
  EXPECT_EQ(word_f1("Université Paris\u00a0VI", "université paris vi"), 100);
  EXPECT_EQ(word_f1("the—cat", "— cat"), 0);
  EXPECT_EQ(word_f1("the—cat", "—cat"), 100);
  EXPECT_EQ(word_f1("théa", "thé"), 0);
  EXPECT_EQ(word_f1("the\u0301 cat", "\u0301 cat"), 100) << "a mark is no part of a word";
}

TEST(TextMetrics, RougeL) {
  // Common subsequences: "the cat on the mat" and "it"; sets of 8 and 7 words, 6 of them common: 12 / 15.
  EXPECT_DOUBLE_EQ(
      rouge_l("the cat sat on the mat. it was happy", "the cat was on the mat. it slept"), 80);
  // "a c d" or "a b"; the longer one counts: 3 of 4 and of 5 words.
  EXPECT_DOUBLE_EQ(rouge_l("a b c d", "a c d e f"), 200.0 * 3 / 9);
  EXPECT_DOUBLE_EQ(rouge_l("one two two three. three four", "two three four. one two"), 100);
  EXPECT_DOUBLE_EQ(rouge_l("one two. \n", "one two"), 80);
  EXPECT_DOUBLE_EQ(rouge_l("one two", " . one. two"), 80);
  EXPECT_DOUBLE_EQ(rouge_l("x y. ", "z. "), 40);
  EXPECT_DOUBLE_EQ(rouge_l("a b. . c", "a b c. "), 100);
  EXPECT_EQ(rouge_l("x", "y"), 0);
  EXPECT_EQ(rouge_l("", "y"), 0);
}

TEST(TextMetrics, ClassMatchIsSharedByAllNamed) {
  const std::vector<std::string> classes = {"City", "State", "Other state", "River"};
  EXPECT_EQ(class_match("City", "City", classes), 100);
  EXPECT_EQ(class_match("City or River", "City", classes), 50);
  EXPECT_EQ(class_match("State", "City", classes), 0);
  EXPECT_EQ(class_match("", "City", classes), 0);
  const std::vector<std::string> nested = {"Food", "Food price"};
  EXPECT_EQ(class_match("Food price", "Food price", nested), 100) << "\"Food\" is a part of it";
  EXPECT_EQ(class_match("Food price", "Food", nested), 50);
  const std::vector<std::string> parts = {"cat", "dog", "cat dog"};
  EXPECT_EQ(class_match("cat dog", "cat dog", parts), 50) << "\"dog\" behind a part stays";
}

TEST(TextMetrics, NumberMatch) {
  EXPECT_EQ(number_match("Paragraph 12", first_number("Paragraph 12")), 100);
  EXPECT_EQ(number_match("12 or 13, or 12", "12"), 200.0 / 3);
  EXPECT_EQ(number_match("twelve", "12"), 0);
  EXPECT_EQ(number_match("112", "12"), 0);
  EXPECT_EQ(number_match("7 \uff13", "7"), 50) << "digits of any script are numbers";
  EXPECT_EQ(first_number("none"), "");
}

TEST(TextMetrics, EditSimilarity) {
  // 11 of 12 and 13 characters in common: 22 / 25.
  EXPECT_EQ(edit_similarity("return x + 1", "return y + 12"), 88);
  EXPECT_EQ(edit_similarity("\n\n# a comment\n```\ni = 1\nj = 2", "i = 1"), 100);
  EXPECT_EQ(edit_similarity("// only a comment", "x"), 0);
  EXPECT_EQ(edit_similarity("abcdexyzuvw", "abcde"), 62) << "62.5: to even";
  const std::string common(23, 'a');
  EXPECT_EQ(edit_similarity(common + std::string(17, 'x'), common + std::string(17, 'y')), 57)
      << "100 * 0.575 is below 57.5";
  EXPECT_EQ(edit_similarity("\xE4\xB8\x80\xE4\xBA\x8C", "\xE4\xB8\x80"), 67)
      << "characters, not bytes";
}

TEST(TextMetrics, FirstLine) {
  EXPECT_EQ(first_line("\n\nCity\nQuestion: ..."), "City");
  EXPECT_EQ(first_line(""), "");
}

}  // namespace
}  // namespace kvc

#include "model/tokenizer/parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvc {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = gpt2_piece_end(text, begin);
    result.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return result;
}

TEST(Gpt2Pieces, WordsTakeOneSpace) {
  EXPECT_THAT(pieces("Hello my  friend"), ElementsAre("Hello", " my", " ", " friend"));
  EXPECT_THAT(pieces(" a 12 !?"), ElementsAre(" a", " 12", " !?"));
  EXPECT_THAT(pieces("a1b"), ElementsAre("a", "1", "b"));
}

TEST(Gpt2Pieces, OnlyTheSpaceCharacterJoinsAWord) {
  EXPECT_THAT(pieces("a\tb"), ElementsAre("a", "\t", "b"));
  EXPECT_THAT(pieces("a\n\n b"), ElementsAre("a", "\n\n", " b"));
  EXPECT_THAT(pieces("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
}

TEST(Gpt2Pieces, WhiteSpaceAtTheEndStaysWhole) {
  EXPECT_THAT(pieces("a  \n "), ElementsAre("a", "  \n "));
  EXPECT_THAT(pieces(" "), ElementsAre(" "));
}

TEST(Gpt2Pieces, Contractions) {
  EXPECT_THAT(pieces("it's we'll I'D"), ElementsAre("it", "'s", " we", "'ll", " I", "'", "D"));
  EXPECT_THAT(pieces("''re"), ElementsAre("''", "re"));
}

TEST(ByteLevel, PrintableBytesStandForThemselves) {
  EXPECT_EQ(bytes_to_characters("a~"), "a~");
  EXPECT_EQ(bytes_to_characters(" \n"), "\u0120\u010A");
  EXPECT_EQ(bytes_to_characters("\u00E9"), "\u00C3\u00A9");
  EXPECT_EQ(bytes_to_characters("\xAD"), "\u0143");
}

}  // namespace
}  // namespace kvc

// The five ways to treat what a pattern matches, and where Metaspace prepends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer/parts.h"
#include "model/tokenizer/pieces.h"

namespace kvc {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> pieces_of(const TokenizerJson& json, const std::string& text,
                                   bool starts_text = true) {
  const PreTokenizer pre_tokenizer = make_pre_tokenizer(json, "test");
  SearchBudget budget(text.size());
  Pieces pieces{text, {{0, text.size()}}, starts_text ? std::size_t{1} : 0};
  pre_tokenizer(pieces, budget);
  std::vector<std::string> result;
  for (const Piece& piece : pieces.pieces) result.emplace_back(pieces.view(piece));
  return result;
}

TokenizerJson split(const char* behavior, bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{"String", "-"}}},
          {"behavior", behavior},
          {"invert", invert}};
}

TEST(Split, Behaviors) {
  const std::string text = "the-final--countdown-";
  EXPECT_THAT(pieces_of(split("Removed"), text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(pieces_of(split("Isolated"), text),
              ElementsAre("the", "-", "final", "-", "-", "countdown", "-"));
  EXPECT_THAT(pieces_of(split("MergedWithPrevious"), text),
              ElementsAre("the-", "final-", "-", "countdown-"));
  EXPECT_THAT(pieces_of(split("MergedWithNext"), text),
              ElementsAre("the", "-final", "-", "-countdown", "-"));
  EXPECT_THAT(pieces_of(split("Contiguous"), text),
              ElementsAre("the", "-", "final", "--", "countdown", "-"));
  EXPECT_THAT(pieces_of(split("Removed", /*invert=*/true), text), ElementsAre("-", "-", "-", "-"));
}

TEST(Split, Digits) {
  TokenizerJson digits = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_THAT(pieces_of(digits, "a12\u00BD"), ElementsAre("a", "1", "2", "\u00BD"));
  digits["individual_digits"] = false;
  EXPECT_THAT(pieces_of(digits, "a12b"), ElementsAre("a", "12", "b"));
}

TokenizerJson metaspace(const char* scheme, bool split) {
  return {{"type", "Metaspace"},
          {"replacement", "\u2581"},
          {"prepend_scheme", scheme},
          {"split", split}};
}

TEST(Metaspace, PrependsWhereTheSchemeSays) {
  EXPECT_THAT(pieces_of(metaspace("always", true), "a  b", false),
              ElementsAre("\u2581a", "\u2581", "\u2581b"));
  EXPECT_THAT(pieces_of(metaspace("first", true), "a b"), ElementsAre("\u2581a", "\u2581b"));
  EXPECT_THAT(pieces_of(metaspace("first", true), "a b", false), ElementsAre("a", "\u2581b"));
  EXPECT_THAT(pieces_of(metaspace("first", true), " a"), ElementsAre("\u2581a"));
  EXPECT_THAT(pieces_of(metaspace("never", false), "a b"), ElementsAre("a\u2581b"));
}

TEST(Metaspace, FirstIsTheFirstPieceOnly) {
  const TokenizerJson sequence = {{"type", "Sequence"},
                                  {"pretokenizers", {split("Isolated"), metaspace("first", true)}}};
  EXPECT_THAT(pieces_of(sequence, "a-b"), ElementsAre("\u2581a", "-", "b"));
}

}  // namespace
}  // namespace kvc

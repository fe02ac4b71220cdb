#include "model/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TokenizerJson model_json() {
  return TokenizerJson::parse(R"({"type": "BPE", "unk_token": "?",
      "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "bc": 5, "abc": 6, "<0xC3>": 7, "<0xA9>": 8,
                "aa": 9, "aaaa": 10},
      "merges": ["b c", ["a", "b"], "a bc", "a a", ["aa", "aa"]]})");
}

std::vector<std::int64_t> encode(const TokenizerJson& json, const std::string& word) {
  std::vector<std::int64_t> ids;
  bpe_encode(read_bpe_model(json, "test"), word, ids);
  return ids;
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  EXPECT_THAT(encode(model_json(), "abc"), ElementsAre(6));  // b c, then a bc; never a b
  EXPECT_THAT(encode(model_json(), "abab"), ElementsAre(4, 4));
  EXPECT_THAT(encode(model_json(), "aaa"), ElementsAre(9, 1));
  EXPECT_THAT(encode(model_json(), "aaaaaaa"), ElementsAre(10, 9, 1));
}

TEST(Bpe, UnknownCharacters) {
  TokenizerJson json = model_json();
  EXPECT_THAT(encode(json, "axyb"), ElementsAre(1, 0, 0, 2));
  json["fuse_unk"] = true;
  EXPECT_THAT(encode(json, "axyb"), ElementsAre(1, 0, 2));
  json["unk_token"] = nullptr;
  EXPECT_THAT(encode(json, "axyb"), ElementsAre(4));  // dropped first, then the neighbours merge
  EXPECT_THAT(encode(json, "xy"), IsEmpty());
}

TEST(Bpe, ByteFallbackOnlyIfAllBytesAreTokens) {
  TokenizerJson json = model_json();
  json["byte_fallback"] = true;
  EXPECT_THAT(encode(json, "a\u00E9"), ElementsAre(1, 7, 8));
  EXPECT_THAT(encode(json, "a\u00E8"), ElementsAre(1, 0));
  EXPECT_THAT(encode(json, "x\u00E9"), ElementsAre(7, 8, 0));  // as the library has it
}

TEST(Bpe, IgnoreMergesKeepsWholeTokens) {
  TokenizerJson json = model_json();
  json["merges"] = TokenizerJson::array();
  EXPECT_THAT(encode(json, "abc"), ElementsAre(1, 2, 3));
  json["ignore_merges"] = true;
  EXPECT_THAT(encode(json, "abc"), ElementsAre(6));
  EXPECT_THAT(encode(json, "abca"), ElementsAre(1, 2, 3, 1));
}

TEST(Bpe, CacheGivesTheSameIds) {
  const BpeModel model = read_bpe_model(model_json(), "test");
  BpeCache cache(model);
  std::vector<std::int64_t> ids;
  for (const char* word : {"abc", "ab", "abc"}) cache.encode(word, ids);
  EXPECT_THAT(ids, ElementsAre(6, 4, 6));
}

// A quadratic merge would take minutes.
TEST(Bpe, AVeryLongWord) {
  const std::string word(std::size_t{1} << 20, 'a');
  EXPECT_EQ(encode(model_json(), word).size(), word.size() / 4);
}

}  // namespace
}  // namespace kvc

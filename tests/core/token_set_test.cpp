#include "core/token_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/hdf5.h"
#include "core/provenance.h"
#include "tests/testing/error_of.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;

class TokenSetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(::testing::TempDir()) /
            ("kvc_tokens_" + std::to_string(getpid()) + ".h5");
    std::filesystem::remove(path_);
    tokens_.sequences = {{1, 5, 9}, {1, 2}};
    tokens_.tokenizer_hash = "abc";
    tokens_.source_hashes = {"s1", "s2"};
    tokens_.split = "evaluation";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string refusal(std::int64_t vocab_size = 0) {
    return error_of([&] { read_token_set(path_, vocab_size); });
  }

  std::filesystem::path path_;
  TokenSet tokens_;
};

TEST_F(TokenSetTest, ReadsBackWhatItWrote) {
  write_token_set(path_, tokens_);
  const TokenSet read = read_token_set(path_, 10);
  EXPECT_EQ(read.sequences, tokens_.sequences);
  EXPECT_EQ(read.tokenizer_hash, "abc");
  EXPECT_EQ(read.source_hashes, tokens_.source_hashes);
  EXPECT_EQ(read.split, "evaluation");
  EXPECT_EQ(read.num_tokens(), 5);
  EXPECT_EQ(read.hash(), tokens_.hash());
}

TEST_F(TokenSetTest, HashSeesEveryPart) {
  const std::string hash = tokens_.hash();
  TokenSet other = tokens_;
  other.sequences = {{1, 5}, {9, 1, 2}};  // the same ids, cut elsewhere
  EXPECT_NE(other.hash(), hash);
  other = tokens_;
  other.split = "calibration";
  EXPECT_NE(other.hash(), hash);
  other = tokens_;
  other.source_hashes = {"s1s2"};
  EXPECT_NE(other.hash(), hash);
  other = tokens_;
  other.tokenizer_hash = "abd";
  EXPECT_NE(other.hash(), hash);
}

TEST_F(TokenSetTest, RefusesIdsOutsideTheVocabulary) {
  write_token_set(path_, tokens_);
  EXPECT_THAT(refusal(9), HasSubstr("token id 9"));
  EXPECT_EQ(refusal(10), "");
}

TEST_F(TokenSetTest, ReplacesAFileOnlyByForce) {
  write_token_set(path_, tokens_);
  EXPECT_THROW(write_token_set(path_, tokens_), Error);
  TokenSet other = tokens_;
  other.sequences.pop_back();
  write_token_set(path_, other, /*force=*/true);
  EXPECT_EQ(read_token_set(path_, 0).hash(), other.hash());
}

TEST_F(TokenSetTest, RefusesLengthsThatDoNotCoverTheIds) {
  for (const std::vector<std::int64_t>& lengths :
       std::vector<std::vector<std::int64_t>>{{2, 2}, {3, 3}, {-1, 6}, {5, 0}}) {
    std::filesystem::remove(path_);
    Hdf5Writer file(path_);
    Provenance provenance;
    provenance.kind = "tokens";
    provenance.options = {{"split", "calibration"}, {"source_hashes", Json::array()}};
    write_provenance(file, provenance);
    file.dataset("/lengths", lengths, {2});
    file.dataset("/ids", std::vector<std::int64_t>{1, 2, 3, 4, 5}, {5});
    file.close();
    EXPECT_THAT(refusal(), HasSubstr("do not add up"));
  }
}

TEST(SpreadSequences, TakesThemEvenlyAndFromBothTexts) {
  for (std::size_t total = 1; total <= 100; ++total) {
    TokenSet tokens;
    tokens.sequences.assign(total, {1});
    for (std::size_t wanted = 0; wanted <= 9; ++wanted) {
      for (const bool has_own : {false, true}) {
        tokens.self = has_own ? Json::object() : Json(nullptr);
        const std::vector<std::size_t> places = spread_sequences(tokens, wanted);
        const std::size_t least = has_own ? 2 : 1;
        EXPECT_EQ(places.size(), std::min(total, std::max(least, wanted)));
        EXPECT_TRUE(std::adjacent_find(places.begin(), places.end(), std::greater_equal<>()) ==
                    places.end());
        EXPECT_LT(places.back(), total);
        EXPECT_LE(total - places.back(), total / places.size() + 1);
        const auto odd = std::count_if(places.begin(), places.end(),
                                       [](std::size_t place) { return place % 2 == 1; });
        EXPECT_TRUE(!has_own || total == 1 ||
                    (odd > 0 && odd < static_cast<std::ptrdiff_t>(places.size())))
            << total << " " << wanted;
      }
    }
  }
}

}  // namespace
}  // namespace kvc

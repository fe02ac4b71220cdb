#include "runtime/program/self_text.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "model/config.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

const TextBounds kBounds{.start = {1, 5}, .ends = {2, 1}};

// Generation that says the same tokens for every row, whatever the prompts.
GenerateRows speaker(std::vector<std::int64_t> tokens, int& calls) {
  return
      [tokens = std::move(tokens), &calls](
          const Engine::Ids& prompts, const GenerateOptions& options, const TokenVisitor& visit) {
        ++calls;
        for (std::size_t i = 0; i < prompts.size(); ++i) {
          for (std::int64_t n = 0; n < options.max_new_tokens; ++n) {
            if (!visit(i, tokens[static_cast<std::size_t>(n) % tokens.size()])) {
              break;
            }
          }
        }
        return GenerateResult{};
      };
}

TEST(SelfText, ATextThatEndsIsFollowedByTheNextInTheSameRow) {
  int calls = 0, written = 0;
  const Rows rows =
      write_rows(speaker({7, 8, 2}, calls), kBounds, {.seq_len = 9}, 0, 2, [&] { ++written; });
  const std::vector<std::int64_t> row = {1, 5, 7, 8, 2, 1, 5, 7, 8};
  EXPECT_EQ(rows, (Rows{row, row}));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(written, 2 * 5);
}

TEST(SelfText, TheTokenThatBeginsATextEndsTheOneBefore) {
  int calls = 0;
  const Rows rows = write_rows(speaker({7, 1}, calls), kBounds, {.seq_len = 8}, 0, 1, [] {});
  EXPECT_EQ(rows, (Rows{{1, 5, 7, 1, 5, 7, 1, 5}}));
}

TEST(SelfText, ARowIsNeverLongerThanAsked) {
  int calls = 0;
  const Rows rows = write_rows(speaker({7, 2}, calls), kBounds, {.seq_len = 5}, 0, 1, [] {});
  EXPECT_EQ(rows, (Rows{{1, 5, 7, 2, 1}}));
}

class WrittenText : public ::testing::Test {
 protected:
  WrittenText() {
    testing::write_synthetic_checkpoint(directory_.path() / "model", {.tokenizer = true});
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(directory_.path() / "model"));
    config_ = read_model_config(*checkpoint_);
  }
  Rows write(std::uint64_t seed, Rows written = {}) {
    return write_self_text(*checkpoint_, config_, {.num_sequences = 3, .seq_len = 24, .seed = seed},
                           std::move(written), [this](const Rows& rows) { kept_ = rows; });
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;
  Rows kept_;
};

TEST_F(WrittenText, FollowsFromTheSeed) {
  const Rows rows = write(1);
  ASSERT_EQ(rows.size(), 3u);
  for (const auto& row : rows) {
    EXPECT_EQ(row.size(), 24u);
    EXPECT_EQ(row.front(), 1);
  }
  EXPECT_EQ(kept_, rows);
  EXPECT_EQ(write(1), rows);
  EXPECT_NE(write(2), rows);
  EXPECT_NE(rows[0], rows[1]);
}

TEST_F(WrittenText, RowsThatAreThereStay) {
  const Rows rows = write(1);
  kept_.clear();
  EXPECT_EQ(write(1, rows), rows);
  EXPECT_TRUE(kept_.empty());  // nothing was left to write
}

TEST_F(WrittenText, BeginsAsTheTokenizerSaysAndEndsWithItsEndTokens) {
  const TextBounds bounds = text_bounds(checkpoint_->directory(), config_);
  EXPECT_EQ(bounds.start, std::vector<std::int64_t>{1});
  for (const std::int64_t id : config_.eos_token_ids) {
    EXPECT_NE(std::find(bounds.ends.begin(), bounds.ends.end(), id), bounds.ends.end());
  }
  EXPECT_NE(std::find(bounds.ends.begin(), bounds.ends.end(), 1), bounds.ends.end());
}

TEST_F(WrittenText, WithoutATokenizerBeginsAsTheConfigSays) {
  const auto bare = directory_.path() / "bare";
  testing::write_synthetic_checkpoint(bare, {});
  config_.bos_token_id = 3;
  EXPECT_EQ(text_bounds(bare, config_).start, std::vector<std::int64_t>{3});
  config_.bos_token_id.reset();
  config_.eos_token_ids = {4};
  EXPECT_EQ(text_bounds(bare, config_).start, std::vector<std::int64_t>{4});
  config_.eos_token_ids.clear();
  EXPECT_TRUE(text_bounds(bare, config_).start.empty());
  const Checkpoint checkpoint = Checkpoint::open(bare);
  EXPECT_THROW(self_text_settings(checkpoint, config_, {}), Error);
}

}  // namespace
}  // namespace kvc

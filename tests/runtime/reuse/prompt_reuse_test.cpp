// What a prompt that starts from a similar one's cache computes and keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/attention/plain_attention.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/reuse/recompute_plan.h"
#include "tests/runtime/reuse/reuse_fixture.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using testing::extend;
using testing::kComputeAll;
using testing::kRounding;
using testing::paraphrase;
using testing::prefill;
using testing::PromptReuseTest;
using testing::random_ids;
using testing::reusing;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
using testing::tensors_identical;

TEST_F(PromptReuseTest, TheSamePromptGivesTheOriginalLogits) {
  for (const char* type : {"llama", "qwen2", "qwen3", "mistral"}) {
    SyntheticCheckpoint model;
    model.model_type = type;
    if (model.model_type == "mistral") {
      model.window = 50;
    }
    const auto reuses = testing::load_plain(model, reusing(directory_ / type));
    const auto original = testing::load_plain(model);
    Sequence whole = reuses->new_sequence(), again = reuses->new_sequence(),
             alone = original->new_sequence();
    const at::Tensor expected = prefill(*original, alone, donor_);
    EXPECT_TRUE(tensors_identical(prefill(*reuses, whole, donor_), expected)) << type;
    EXPECT_EQ(whole.reuse()->whole, "no donor");
    EXPECT_TRUE(tensors_close(prefill(*reuses, again, donor_), expected, kRounding)) << type;
    EXPECT_EQ(again.reuse()->whole, "");
    EXPECT_NE(again.reuse()->donor, "");
    EXPECT_NEAR(again.reuse()->similarity, 1, 1e-6);
    const at::Tensor rest = extend(*original, alone, more_);
    EXPECT_TRUE(tensors_close(extend(*reuses, again, more_), rest, kRounding)) << type;
    whole = reuses->new_sequence();  // the pool then has the other one alone
    testing::expect_exact_bytes(*reuses, again);
  }
}

TEST_F(PromptReuseTest, AllRecomputedGivesTheOriginalLogitsWhateverTheDonor) {
  for (const std::string settings : {"", ",rerotate=on", ",similarity=hamming30"}) {
    const auto reuses = engine(kComputeAll + settings);
    const auto original = testing::load_plain(model_);
    Sequence first = reuses->new_sequence();
    prefill(*reuses, first, random_ids(1, 90, model_.vocab_size, 9).front());
    Sequence sequence = reuses->new_sequence(), alone = original->new_sequence();
    EXPECT_TRUE(tensors_close(prefill(*reuses, sequence, target_),
                              prefill(*original, alone, target_), kRounding));
    EXPECT_NE(sequence.reuse()->donor, "");
    EXPECT_EQ(sequence.reuse()->recomputed, (std::vector<std::int64_t>(4, 190)));
    EXPECT_TRUE(tensors_close(extend(*reuses, sequence, more_), extend(*original, alone, more_),
                              kRounding));
  }
}

TEST_F(PromptReuseTest, ReuseChangesWhatItDoesNotCompute) {
  const auto reuses = engine();
  const auto original = testing::load_plain(model_);
  Sequence first = reuses->new_sequence(), second = reuses->new_sequence(),
           alone = original->new_sequence();
  prefill(*reuses, first, donor_);
  const at::Tensor reused = prefill(*reuses, second, target_);
  EXPECT_FALSE(tensors_close(reused, prefill(*original, alone, target_), 1e-6));
  const ReuseReport& report = *second.reuse();
  EXPECT_EQ(report.recomputed.size(), 4u);
  EXPECT_EQ(report.recomputed[0], 190);
  EXPECT_LT(report.recomputed[1], 100);
  EXPECT_EQ(report.recomputed[3],
            num_recomputed(3, report.recomputed[1], 190, reusing("", "").reuse));
  EXPECT_EQ(report.donor_tokens, 190);
  EXPECT_EQ(report.donor_bytes, 2 * 4 * 16 * 190 * 4 + 4 * 190);
}

TEST_F(PromptReuseTest, BelowTheGateAPromptIsReadAsEver) {
  for (const char* settings : {"min-similarity=1", "min-tokens=191"}) {
    const auto reuses = engine(settings);
    const auto original = testing::load_plain(model_);
    Sequence first = reuses->new_sequence(), second = reuses->new_sequence(),
             alone = original->new_sequence();
    prefill(*reuses, first, donor_);
    const at::Tensor expected = prefill(*original, alone, target_);
    EXPECT_TRUE(tensors_identical(prefill(*reuses, second, target_), expected));
    EXPECT_EQ(second.reuse()->donor, "");
    EXPECT_NE(second.reuse()->whole, "");
    EXPECT_TRUE(tensors_identical(extend(*reuses, second, more_), extend(*original, alone, more_)));
  }
}

// What the caches of its layers take, which hold so many tokens each.
std::int64_t retained_bytes(const Engine& engine, const std::vector<std::int64_t>& tokens) {
  std::int64_t bytes = 0;
  for (const std::int64_t rows : tokens) {
    bytes +=
        retained_layer_bytes(engine.plan(), rows, engine.kv_dtype(), engine.pool().page_tokens());
  }
  return bytes;
}

TEST_F(PromptReuseTest, LayersKeepWhatTheScheduleSays) {
  keep_donor();
  for (const char* retention : {"decay", "constant", "growth"}) {
    const std::string settings = fmt::format("retention={},store=off", retention);
    const auto reuses = engine(settings);
    Sequence sequence = reuses->new_sequence();
    prefill(*reuses, sequence, target_);
    const ReuseReport& report = *sequence.reuse();
    std::vector<std::int64_t> expected;
    for (int layer = 0; layer < 4; ++layer) {
      expected.push_back(
          num_retained(layer, 4, 190, report.hot_ratio, reusing("", settings).reuse));
      const KeyValueStore& store = sequence.cache().plain_layer(layer);
      EXPECT_EQ(store.num_exact(), expected.back());
      ASSERT_TRUE(store.positions);
      const at::Tensor positions = store.positions->rows(at::kInt);
      EXPECT_EQ(positions[-1].item<int>(), 189);
      EXPECT_TRUE((positions.diff() > 0).all().item<bool>());
    }
    EXPECT_EQ(report.retained, expected);
    EXPECT_EQ(sequence.cache().allocated_bytes(), retained_bytes(*reuses, expected));
    for (int step = 0; step < 20; ++step) {
      extend(*reuses, sequence, {more_[0]});
      for (std::int64_t& rows : expected) {
        ++rows;
      }
      EXPECT_EQ(sequence.cache().allocated_bytes(), retained_bytes(*reuses, expected));
      EXPECT_EQ(reuses->pool().allocated_bytes(), sequence.cache().allocated_bytes());
    }
  }
}

// A store that drops tokens keeps all: nothing changes.
TEST_F(PromptReuseTest, AllRetainedWithPositionsIsTheOriginal) {
  for (const std::optional<std::int64_t> window : {std::optional<std::int64_t>(), {60}}) {
    SyntheticCheckpoint model;
    model.model_type = "mistral";
    model.window = window;
    const fs::path donors = directory_ / (window ? "window" : "none");
    const auto reuses = testing::load_plain(
        model, reusing(donors, std::string(kComputeAll) + ",retention=constant,retain-first=1"));
    const auto original = testing::load_plain(model);
    Sequence first = reuses->new_sequence(), sequence = reuses->new_sequence(),
             alone = original->new_sequence();
    prefill(*reuses, first, donor_);
    EXPECT_TRUE(tensors_close(prefill(*reuses, sequence, target_),
                              prefill(*original, alone, target_), kRounding));
    ASSERT_TRUE(sequence.cache().holds_positions());
    for (const std::int64_t id : more_) {
      EXPECT_TRUE(tensors_close(extend(*reuses, sequence, {id}), extend(*original, alone, {id}),
                                kRounding));
    }
    const Row turn = random_ids(1, 33, model.vocab_size, 6).front();
    EXPECT_TRUE(tensors_close(prefill(*reuses, sequence, turn), prefill(*original, alone, turn),
                              kRounding));
  }
}

// Attention over a store of some tokens is that over these tokens alone, at their positions.
TEST_F(PromptReuseTest, DroppedTokensAreNotAttended) {
  for (const std::optional<std::int64_t> window : {std::optional<std::int64_t>(), {10}}) {
    SyntheticCheckpoint model;
    model.model_type = "mistral";
    model.window = window;
    testing::write_synthetic_checkpoint(directory_ / "model", model);
    const Decoder decoder(Checkpoint::open(directory_ / "model"), at::kFloat);
    fs::remove_all(directory_ / "model");
    const KvPlan plan = plain_plan(4, 2, 8);
    const StoreOptions options{.pool = std::make_shared<KvPool>(16)};
    KvCache cache(std::make_shared<const KvPlan>(plan), options);
    cache.hold_positions(options);
    const at::Tensor kept = at::tensor({0, 3, 4, 9, 15, 21, 22, 27, 28, 29}, at::kLong);
    const at::Tensor key = testing::random_normal({10, 2, 8}, 1);
    const at::Tensor value = testing::random_normal({10, 2, 8}, 2);
    cache.plain_layer(1).append(key, value, kept);
    for (const std::int64_t count : {1, 2}) {
      const at::Tensor query = testing::random_normal({count, 4, 8}, 3);
      const at::Tensor positions = at::arange(30 - count, 30, at::kLong);
      const AttentionRule rule = attention_rule(decoder.config(), 1);
      EXPECT_TRUE(tensors_close(
          attend_plain(decoder, 1, cache.plain_layer(1), 4, query, positions),
          attend_segments(query, positions, {segment_of(key, value, kept)}, rule), 1e-5));
    }
  }
}

}  // namespace
}  // namespace kvc

#include "runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "core/error.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::cache_of;
using testing::cached_logits;
using testing::expect_exact_bytes;
using testing::grouped_plan;
using testing::kRounding;
using testing::load;
using testing::load_plain;
using testing::pages_of;
using testing::part;
using testing::plain_logits;
using testing::random_ids;
using testing::Row;
using testing::small_policy;
using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;
using testing::tensors_close;

std::vector<SyntheticCheckpoint> every_architecture() {
  SyntheticCheckpoint llama{.model_type = "llama", .attention_bias = true, .rope_type = "llama3"};
  SyntheticCheckpoint mistral{.model_type = "mistral", .window = 9};
  SyntheticCheckpoint qwen2{.model_type = "qwen2"};
  SyntheticCheckpoint qwen3{.model_type = "qwen3", .head_dim = 12, .attention_bias = true};
  return {llama, mistral, qwen2, qwen3};
}

TEST(Engine, PlainCacheGivesTheLogitsOfOnePass) {
  for (const SyntheticCheckpoint& model : every_architecture()) {
    const Row ids = random_ids(1, 40, model.vocab_size, 1).front();
    const at::Tensor expected = plain_logits(model, ids);
    const auto engine = load_plain(model);
    for (const std::size_t chunk : {1, 7}) {
      EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, 11, chunk), expected, kRounding))
          << model.model_type << " " << chunk;
    }
  }
}

TEST(Engine, FullRankWithoutMergingKeepsTheLogits) {
  for (const SyntheticCheckpoint& model : every_architecture()) {
    const Row ids = random_ids(1, 40, model.vocab_size, 2).front();
    const at::Tensor expected = plain_logits(model, ids);
    for (const int layers_per_group : {2, 4}) {
      const KvPlan plan =
          grouped_plan(model, layers_per_group, model.hidden_size, small_policy(MergeRule::kNone));
      const auto engine = load(model, plan);
      Sequence sequence = engine->new_sequence();
      EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, 21, 3, sequence), expected, kRounding))
          << model.model_type << " " << layers_per_group;
      EXPECT_GT(sequence.cache().tokens().front().unmerged, 20);
    }
  }
}

TEST(Engine, SplitGroupsOfFullRankKeepTheLogits) {
  for (const SyntheticCheckpoint& model : every_architecture()) {
    const Row ids = random_ids(1, 30, model.vocab_size, 3).front();
    const std::int64_t rank = model.num_kv_heads * model.head_dim;
    const auto engine = load(model, testing::split_plan(model, rank, rank));
    Sequence sequence = engine->new_sequence();
    EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, 13, 4, sequence),
                              plain_logits(model, ids), kRounding))
        << model.model_type;
    expect_exact_bytes(*engine, sequence);
  }
}

TEST(Engine, UnmergedPlainTokensAreExact) {
  const SyntheticCheckpoint model{.model_type = "qwen3", .attention_bias = true};
  CompressionSettings policy = small_policy(MergeRule::kLs);
  policy.target_kept_ratio = 2;  // nothing need merge
  const Row ids = random_ids(1, 40, model.vocab_size, 4).front();
  const auto engine = load(model, grouped_plan(model, 4, 8, policy));
  EXPECT_TRUE(
      tensors_close(cached_logits(*engine, ids, 21, 3), plain_logits(model, ids), kRounding));
}

TEST(Engine, AllocatedBytesEqualTheFormulaAtEveryStep) {
  const SyntheticCheckpoint gqa{.model_type = "llama", .num_layers = 5};
  const SyntheticCheckpoint normed{.model_type = "qwen3"};
  for (const SyntheticCheckpoint& model : {gqa, normed}) {
    for (const MergeRule rule : {MergeRule::kNone, MergeRule::kMean, MergeRule::kLs}) {
      for (const UnmergedForm unmerged : {UnmergedForm::kPlain, UnmergedForm::kLatent}) {
        for (const std::int64_t page : {1, 16}) {
          CompressionSettings policy = small_policy(rule);
          policy.unmerged = rule == MergeRule::kNone ? UnmergedForm::kLatent : unmerged;
          const auto engine = load(model, grouped_plan(model, 2, 10, policy), pages_of(page));
          const Row ids = random_ids(1, 45, model.vocab_size, 5).front();
          Sequence sequence = engine->new_sequence();
          engine->prefill({&sequence}, {part(ids, 0, 20)}, Engine::Rows::kLast);
          expect_exact_bytes(*engine, sequence);
          for (std::size_t i = 20; i < ids.size(); ++i) {
            engine->extend({&sequence}, {{ids[i]}}, Engine::Rows::kLast);
            expect_exact_bytes(*engine, sequence);
          }
        }
      }
    }
  }
}

TEST(Engine, KeptRatioReachesTheTarget) {
  const SyntheticCheckpoint model{.num_kv_heads = 4};
  CompressionSettings policy = small_policy(MergeRule::kLs);
  const Row ids = random_ids(1, 120, model.vocab_size, 6).front();
  for (const Granularity granularity : {Granularity::kToken, Granularity::kGroup}) {
    policy.granularity = granularity;
    const auto engine = load(model, grouped_plan(model, 2, 8, policy), pages_of(1));
    Sequence sequence = engine->new_sequence();
    engine->prefill({&sequence}, {part(ids, 0, 60)}, Engine::Rows::kLast);
    const auto ratio = [&] {
      return static_cast<double>(sequence.cache().allocated_bytes()) /
             static_cast<double>(
                 original_bytes(engine->plan(), sequence.num_tokens(), engine->kv_dtype()));
    };
    const double entry = 4.0 / 120;  // one entry of this prompt is worth less
    EXPECT_LE(ratio(), policy.target_kept_ratio);
    if (granularity == Granularity::kToken) {
      EXPECT_GT(ratio(), policy.target_kept_ratio - entry);
    }
    engine->extend({&sequence}, {part(ids, 60, 120)}, Engine::Rows::kLast);
    EXPECT_LE(ratio(), policy.target_kept_ratio + entry);
  }
}

TEST(Engine, SeveralIdsEqualOneAtATime) {
  const SyntheticCheckpoint model{.model_type = "qwen3"};
  for (const MergeRule rule : {MergeRule::kNone, MergeRule::kMean, MergeRule::kLs}) {
    const auto engine = load(model, grouped_plan(model, 2, 12, small_policy(rule)));
    const Row ids = random_ids(1, 60, model.vocab_size, 7).front();
    Sequence one = engine->new_sequence(), many = engine->new_sequence();
    const at::Tensor expected = cached_logits(*engine, ids, 15, 1, one);
    EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, 15, 45, many), expected, kRounding))
        << to_string(rule);
    for (std::size_t group = 0; group < one.cache().tokens().size(); ++group) {
      EXPECT_EQ(one.cache().tokens()[group].merged, many.cache().tokens()[group].merged);
      EXPECT_EQ(one.cache().tokens()[group].pending, many.cache().tokens()[group].pending);
    }
  }
}

TEST(Engine, RowsOfABatchAreIndependent) {
  const SyntheticCheckpoint model{.model_type = "qwen2"};
  for (const MergeRule rule : {MergeRule::kMean, MergeRule::kLs}) {
    const auto engine = load(model, grouped_plan(model, 4, 12, small_policy(rule)));
    const Row first = random_ids(1, 30, model.vocab_size, 8).front();
    const Row second = random_ids(1, 17, model.vocab_size, 9).front();
    Sequence a = engine->new_sequence(), b = engine->new_sequence();
    const auto prefill =
        engine->prefill({&a, &b}, {part(first, 0, 20), part(second, 0, 12)}, Engine::Rows::kAll);
    const auto extend =
        engine->extend({&a, &b}, {part(first, 20, 30), part(second, 12, 17)}, Engine::Rows::kAll);
    EXPECT_TRUE(tensors_close(at::cat({prefill[0], extend[0]}),
                              cached_logits(*engine, first, 20, 10), kRounding));
    EXPECT_TRUE(tensors_close(at::cat({prefill[1], extend[1]}),
                              cached_logits(*engine, second, 12, 5), kRounding));
  }
}

TEST(Engine, LaterPromptsReadTheCompressedCacheAndAreCompressed) {
  const SyntheticCheckpoint model;
  CompressionSettings policy = small_policy(MergeRule::kNone);
  const auto engine = load(model, grouped_plan(model, 2, model.hidden_size, policy));
  const Row ids = random_ids(1, 50, model.vocab_size, 10).front();
  Sequence sequence = engine->new_sequence();
  std::vector<at::Tensor> rows =
      engine->prefill({&sequence}, {part(ids, 0, 20)}, Engine::Rows::kAll);
  rows.push_back(engine->extend({&sequence}, {part(ids, 20, 23)}, Engine::Rows::kAll).front());
  rows.push_back(engine->prefill({&sequence}, {part(ids, 23, 50)}, Engine::Rows::kAll).front());
  EXPECT_TRUE(tensors_close(at::cat(rows), plain_logits(model, ids), kRounding));
  EXPECT_EQ(sequence.cache().tokens().front().pending, policy.sink_tokens + policy.window_tokens);
  expect_exact_bytes(*engine, sequence);
}

TEST(Engine, TruncatedPrefillOfFullRankKeepsTheLogits) {
  const SyntheticCheckpoint model{.model_type = "qwen2"};
  CompressionSettings policy = small_policy(MergeRule::kMean);
  policy.prefill = PrefillMode::kTruncated;
  const Row ids = random_ids(1, 20, model.vocab_size, 11).front();
  const auto logits = [&](std::int64_t rank) {
    const auto engine = load(model, grouped_plan(model, 2, rank, policy));
    Sequence sequence = engine->new_sequence();
    return engine->prefill({&sequence}, {ids}, Engine::Rows::kAll).front();
  };
  const at::Tensor expected = plain_logits(model, ids);
  EXPECT_TRUE(tensors_close(logits(model.hidden_size), expected, kRounding));
  EXPECT_GT((logits(8) - expected).abs().max().item<double>(), 100 * kRounding);
}

TEST(Engine, ReleasesTheMemoryOfASequence) {
  const auto engine = load_plain({});
  {
    Sequence sequence = engine->new_sequence();
    engine->prefill({&sequence}, {{1, 2, 3}}, Engine::Rows::kLast);
    EXPECT_GT(engine->pool().allocated_bytes(), 0);
    const Sequence moved = std::move(sequence);
    EXPECT_GT(engine->pool().allocated_bytes(), 0);
  }
  EXPECT_EQ(engine->pool().allocated_bytes(), 0);
}

TEST(Engine, HalfPrecisionCacheTakesHalfTheBytes) {
  const Row ids = random_ids(1, 32, 96, 12).front();
  const auto wide = load_plain({}), narrow = load_plain({}, cache_of("bfloat16"));
  Sequence a = wide->new_sequence(), b = narrow->new_sequence();
  const at::Tensor expected = cached_logits(*wide, ids, 16, 1, a);
  EXPECT_TRUE(tensors_close(cached_logits(*narrow, ids, 16, 1, b), expected, 0.2));
  EXPECT_EQ(a.cache().allocated_bytes(), 2 * b.cache().allocated_bytes());
}

TEST(Engine, RefusesWhatItDoesNotKnow) {
  const TemporaryDirectory directory;
  const SyntheticCheckpoint model;
  testing::write_factored_checkpoint(directory.path(), model,
                                     grouped_plan(model, 2, 8, small_policy(MergeRule::kLs)));
  Json config = read_json(directory / "config.json");
  config["kvconvert"]["format"] = 2;
  std::ofstream(directory / "config.json") << dump_json(config);
  EXPECT_THAT([&] { Engine::load(directory.path(), {}); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("format 1 expected, 2 found")));
  EXPECT_THROW(load_plain(model, cache_of("int3")), Error);
  const SyntheticCheckpoint narrow{.head_dim = 12};
  EXPECT_THAT([&] { load_plain(narrow, cache_of("int8")); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("heads of 12 channels")));
  EngineOptions pages = cache_of("int4");
  pages.page_tokens = 48;
  EXPECT_THAT([&] { load_plain(model, pages); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("pages of 48 tokens")));
  const auto engine = load_plain(model);
  Sequence sequence = engine->new_sequence();
  EXPECT_THROW(engine->prefill({&sequence}, {{96}}, Engine::Rows::kLast), Error);
  EXPECT_THROW(engine->extend({&sequence}, {{}}, Engine::Rows::kLast), Error);
}

}  // namespace
}  // namespace kvc

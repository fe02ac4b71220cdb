// Pairs of layers that share the directions of a prompt's keys and values (MiniCache).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/compression/pair_merging.h"
#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::cached_logits;
using ::testing::HasSubstr;
using testing::kRounding;
using testing::paired_plan;
using testing::random_ids;
using testing::random_normal;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

constexpr std::size_t kPrompt = 60, kTokens = 80;

Row text_of(const SyntheticCheckpoint& model, std::uint64_t seed) {
  return random_ids(1, kTokens, model.vocab_size, seed).front();
}

// A cache of one pair, layers 2 and 3, with these exact rows, all of them merged.
struct MergedPair {
  MergedPair(const KvPlan& plan, const at::Tensor& lower, const at::Tensor& upper)
      : pool(std::make_shared<KvPool>(4)),
        cache(std::make_shared<const KvPlan>(plan), {.pool = pool}) {
    cache.pair(2).exact[0].append(lower, 2 * upper);
    cache.pair(2).exact[1].append(upper, 3 * lower);
    cache.add_tokens(std::vector<std::int64_t>(static_cast<std::size_t>(lower.size(0)), 0));
    merge_pair(*plan.paired, 0, cache.pair(2));
  }
  static at::Tensor restored(const PairedRows& rows, std::int64_t index) {
    return restored_rows(rows, index, 0, rows.num_rows(), at::kFloat);
  }
  at::Tensor key(std::int64_t index) { return restored(cache.pair(2).key, index); }
  at::Tensor value(std::int64_t index) { return restored(cache.pair(2).value, index); }

  std::shared_ptr<KvPool> pool;
  KvCache cache;
};

// (3, 0) and (0, 4): the direction at 60 % of the right angle.
TEST(Interpolation, TurnsByTheShareOfTheAngle) {
  const at::Tensor lower = at::tensor({3.0f, 0.0f}), upper = at::tensor({0.0f, 4.0f});
  constexpr double kRight = std::numbers::pi / 2;
  EXPECT_NEAR(angle_between(lower, upper).item<double>(), kRight, 1e-6);
  const at::Tensor expected = at::tensor({std::cos(0.6 * kRight), std::sin(0.6 * kRight)});
  EXPECT_TRUE(tensors_close(interpolate(lower, upper, 0.6), expected.to(at::kFloat), 1e-6));
  EXPECT_TRUE(tensors_close(interpolate(lower, upper, 0), at::tensor({1.0f, 0.0f}), 1e-6));
  EXPECT_TRUE(tensors_close(interpolate(lower, upper, 1), at::tensor({0.0f, 1.0f}), 1e-6));
}

TEST(Interpolation, IsDefinedWhereDirectionsAreNot) {
  const at::Tensor zero = at::zeros({2}), unit = at::tensor({0.0f, 1.0f});
  EXPECT_TRUE(tensors_close(interpolate(zero, 5 * unit, 0.6), unit, 0));
  EXPECT_TRUE(tensors_close(interpolate(5 * unit, zero, 0.6), unit, 0));
  EXPECT_TRUE(tensors_close(interpolate(zero, zero, 0.6), zero, 0));
  EXPECT_EQ(angle_between(zero, unit).item<double>(), 0);
  EXPECT_TRUE(tensors_close(interpolate(unit, -unit, 0.5), -unit, 1e-6));
  // Too small for arccos of a float32 cosine.
  EXPECT_NEAR(angle_between(unit, at::tensor({1e-5f, 1.0f})).item<double>(), 1e-5, 1e-8);
}

TEST(Retention, TakesTheFarthestOfTheRange) {
  const at::Tensor angles = at::tensor({0.1f, 0.9f, 0.2f, 1.0f, 0.95f, 0.15f});
  PairedLayers rule{.first_layers = {0}, .retained = 0.15};
  const auto retained = [&] { return retained_tokens(rule, angles); };
  EXPECT_TRUE(at::equal(retained(), at::tensor({3}, at::kLong)));  // one of six at most
  rule.retained = 0.5;
  EXPECT_TRUE(at::equal(retained(), at::tensor({1, 3, 4}, at::kLong)));
  rule.retains_similar = true;
  EXPECT_TRUE(at::equal(retained(), at::tensor({0, 2, 5}, at::kLong)));
  rule.retained = 0;
  EXPECT_EQ(retained().size(0), 0);
  rule.retained = 0.5;
  EXPECT_EQ(retained_tokens(rule, at::ones({6})).size(0), 0);  // nothing stands out
}

TEST(PairMerging, IsExactWhereDirectionsAreEqual) {
  const SyntheticCheckpoint model;
  const at::Tensor rows = random_normal({9, 2, 8}, 1);
  MergedPair pair(paired_plan(model), rows, 0.25 * rows);
  EXPECT_TRUE(tensors_close(pair.key(0), rows, 1e-5));
  EXPECT_TRUE(tensors_close(pair.key(1), 0.25 * rows, 1e-5));
  EXPECT_TRUE(tensors_close(pair.value(0), 0.5 * rows, 1e-5));
  EXPECT_TRUE(tensors_close(pair.value(1), 3 * rows, 1e-5));
}

TEST(PairMerging, KeepsNormsAndRetainedRows) {
  const SyntheticCheckpoint model;
  const at::Tensor lower = random_normal({2000, 2, 8}, 2), upper = random_normal({2000, 2, 8}, 3);
  MergedPair pair(paired_plan(model, 0.2), lower, upper);
  const auto norms = [](const at::Tensor& x) { return x.square().sum(-1).sqrt(); };
  EXPECT_TRUE(tensors_close(norms(pair.key(0)), norms(lower), 1e-5));
  EXPECT_TRUE(tensors_close(norms(pair.key(1)), norms(upper), 1e-5));
  const at::Tensor kept =
      retained_tokens(*pair.cache.plan().paired, angle_between(lower, upper).mean(-1));
  ASSERT_GT(kept.size(0), 0);
  EXPECT_EQ(pair.cache.pair_tokens()[0].retained_keys, kept.size(0));
  EXPECT_TRUE(at::equal(pair.key(0).index_select(0, kept), lower.index_select(0, kept)));
  EXPECT_TRUE(at::equal(pair.key(1).index_select(0, kept), upper.index_select(0, kept)));
  EXPECT_EQ(pair.cache.allocated_bytes(),
            plan_bytes(pair.cache.plan(), 0, {}, KvDtype::kFloat32, 4, pair.cache.pair_tokens()));
}

// With (nearly) everything retained the cache is the model's own, generated tokens are always.
TEST(PairedCache, LeavesThePromptsLogitsAndRetainedTokensAsTheyAre) {
  const testing::OneThread one;
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    const SyntheticCheckpoint model{.model_type = family};
    const Row ids = text_of(model, 4);
    const at::Tensor expected = testing::plain_logits(model, ids);
    for (const std::int64_t chunk : {0, 16}) {
      EngineOptions options;
      options.prefill_chunk = chunk;
      const auto engine = testing::load(model, paired_plan(model), options);
      Sequence sequence = engine->new_sequence();
      const at::Tensor logits = cached_logits(*engine, ids, kPrompt, 1, sequence);
      EXPECT_TRUE(
          tensors_close(logits.narrow(0, 0, kPrompt), expected.narrow(0, 0, kPrompt), kRounding));
      EXPECT_FALSE(tensors_close(logits, expected, 10 * kRounding));
      const PairTokens tokens = sequence.cache().pair_tokens().front();
      EXPECT_EQ(tokens.merged, 60);
      EXPECT_EQ(tokens.exact, 20);
      EXPECT_GT(tokens.retained_keys, 0);
      EXPECT_LE(tokens.retained_keys, 3);
      testing::expect_exact_bytes(*engine, sequence);
    }
  }
}

TEST(PairedCache, IsReadAlikeByOneQueryAndSeveral) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const Row ids = text_of(model, 5);
  const auto engine = testing::load(model, paired_plan(model));
  EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, kPrompt, 1),
                            cached_logits(*engine, ids, kPrompt, 7), kRounding));
}

// Prompts of later turns are merged, what was generated between them is not.
TEST(PairedCache, MergesEveryTurnsPromptWithinTheForecast) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const Row ids = text_of(model, 6);
  const KvPlan plan = paired_plan(model, 0.1);
  const auto engine = testing::load(model, plan, testing::pages_of(4));
  Sequence sequence = engine->new_sequence();
  CacheForecast forecast(plan, KvDtype::kFloat32, 4);
  std::int64_t most = 0;
  const auto check = [&] {
    EXPECT_LE(sequence.cache().allocated_bytes(), forecast.bytes());
    EXPECT_LE(engine->pool().peak_bytes(), most);
    testing::expect_exact_bytes(*engine, sequence);
  };
  engine->prefill({&sequence}, {testing::part(ids, 0, 40)}, Engine::Rows::kLast);
  most = std::max(most, forecast.read(40));
  check();
  engine->extend({&sequence}, {testing::part(ids, 40, 50)}, Engine::Rows::kLast);
  most = std::max(most, forecast.extend(10));
  check();
  const Sequence fork = sequence.fork();
  engine->prefill({&sequence}, {testing::part(ids, 50, 70)}, Engine::Rows::kLast);
  most = std::max(most, forecast.read(20));
  const PairTokens tokens = sequence.cache().pair_tokens().front();
  EXPECT_EQ(tokens.merged, 60);
  EXPECT_EQ(tokens.exact, 10);
  EXPECT_EQ(fork.cache().pair_tokens().front().merged, 40);
  EXPECT_TRUE(
      at::equal(sequence.cache().pair(2).exact_positions(1), at::arange(40, 50, at::kLong)));
  const auto last = [&](Sequence& of) {
    return engine->extend({&of}, {testing::part(ids, 70, 71)}, Engine::Rows::kLast).front();
  };
  EXPECT_TRUE(at::isfinite(last(sequence)).all().item<bool>());
}

TEST(PairedCache, RefusesTokenPolicies) {
  const SyntheticCheckpoint model;
  for (const char* policy : {"streamingllm", "h2o", "zeromerge", "snapkv", "pyramidkv", "think"}) {
    EngineOptions options;
    options.policy = parse_token_policy(policy);
    EXPECT_THAT(
        error_of([&] { testing::load(model, paired_plan(model), options); }),
        ::testing::AllOf(HasSubstr("paired layers (minicache)"), HasSubstr("leave --policy out")))
        << policy;
  }
}

// Integer types leave pairs as 16-bit numbers.
TEST(PairedCache, HasExactBytesOfEveryType) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const Row ids = text_of(model, 7);
  for (const char* dtype : {"float32", "float16", "bfloat16", "int8", "int4"}) {
    const auto engine = testing::load(model, paired_plan(model), testing::cache_of(dtype));
    Sequence sequence = engine->new_sequence();
    cached_logits(*engine, ids, kPrompt, 1, sequence);
    testing::expect_exact_bytes(*engine, sequence);
  }
}

}  // namespace
}  // namespace kvc

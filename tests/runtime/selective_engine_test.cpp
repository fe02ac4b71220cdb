// Generation that rebuilds some latents only: what it equals, what it holds and where it is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::selective_engine_test {
namespace {

using testing::cached_logits;
using ::testing::HasSubstr;
using testing::kRounding;
using testing::part;
using testing::principal_plan;
using testing::random_ids;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

constexpr std::size_t kPrompt = 120, kTokens = 150;
constexpr auto kAll = SelectiveReconstruction::kAllChunks;

Row text_of(const SyntheticCheckpoint& model, std::uint64_t seed) {
  return random_ids(1, kTokens, model.vocab_size, seed).front();
}

EngineOptions selecting(std::int64_t chunks, std::int64_t outliers, std::int64_t chunk_tokens = 4) {
  EngineOptions options;
  options.page_tokens = 4;
  options.selective = SelectiveReconstruction{chunks, outliers, chunk_tokens};
  return options;
}

// What a run makes of the plan.
KvPlan plan_with(KvPlan plan, const EngineOptions& options) {
  plan.selective = options.selective;
  return plan;
}

KvPlan request_plan(const SyntheticCheckpoint& model, LaterTokens later, bool generated = false) {
  KvPlan plan = principal_plan(model, 2, LatentBasis::kRequest, false, 4, 6);
  plan.request->later = later;
  plan.request->compress_generated = generated;
  plan.compression.block_tokens = generated ? 21 : 5;
  return plan;
}

TEST(SelectiveEngine, AllChunksAreFullReconstruction) {
  const testing::OneThread one;
  for (const LatentBasis basis : {LatentBasis::kRequest, LatentBasis::kCalibrated}) {
    for (const bool joint : {false, true}) {
      const SyntheticCheckpoint model{.model_type = "qwen2"};
      const KvPlan plan = principal_plan(model, 2, basis, joint, 4, 6);
      const Row ids = text_of(model, 3);
      const auto full = testing::load(model, plan, testing::pages_of(4));
      const auto selective = testing::load(model, plan, selecting(kAll, 0));
      EXPECT_TRUE(at::equal(cached_logits(*selective, ids, kPrompt, 1),
                            cached_logits(*full, ids, kPrompt, 1)));
      EXPECT_GT(selective->rebuild_counts().latents, 0);
      EXPECT_EQ(selective->rebuild_counts().rebuilt, selective->rebuild_counts().latents);
    }
  }
}

// A prompt of one token over and over has latents of rank 1: nothing is lost, whatever is exact besides.
TEST(SelectiveEngine, SeesEveryTokenOnceWhereChunksAreExact) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "qwen3"};
  Row ids = text_of(model, 4);
  std::fill_n(ids.begin(), kPrompt, 7);
  const at::Tensor expected = testing::plain_logits(model, ids);
  const KvPlan plan = request_plan(model, LaterTokens::kExact);
  for (const std::int64_t outliers : {1, 5, 12}) {
    const auto engine = testing::load(model, plan, selecting(kAll, outliers));
    EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, kPrompt, 1), expected, kRounding));
  }
}

TEST(SelectiveEngine, ReadsSeveralTokensAsOneByOne) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const Row ids = text_of(model, 5);
  for (const bool generated : {false, true}) {
    const auto engine = testing::load(model, request_plan(model, LaterTokens::kProject, generated),
                                      selecting(5, 2));
    EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, kPrompt, 30),
                              cached_logits(*engine, ids, kPrompt, 1), kRounding));
  }
}

TEST(SelectiveEngine, RebuildsItsBudget) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const Row ids = text_of(model, 6);
  const KvPlan plan = request_plan(model, LaterTokens::kExact);
  const auto engine = testing::load(model, plan, selecting(5, 2));
  const at::Tensor logits = cached_logits(*engine, ids, kPrompt, 1);
  const std::int64_t steps = kTokens - kPrompt, heads = model.num_layers * model.num_kv_heads;
  EXPECT_EQ(engine->rebuild_counts().rebuilt, steps * heads * 5 * 4);
  EXPECT_EQ(engine->rebuild_counts().latents, steps * heads * 112);  // but 2 sinks, a window of 6
  const auto full = testing::load(model, plan);
  EXPECT_FALSE(tensors_close(logits, cached_logits(*full, ids, kPrompt, 1), kRounding));
  EXPECT_TRUE(tensors_close(logits.narrow(0, 0, kPrompt),
                            cached_logits(*full, ids, kPrompt, 1).narrow(0, 0, kPrompt),
                            kRounding));
}

// What is allocated is what the plan says and what was forecast, turn after turn.
TEST(SelectiveEngine, HoldsWhatThePlanSays) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const Row ids = text_of(model, 7);
  for (const LaterTokens later : {LaterTokens::kProject, LaterTokens::kNewSegment}) {
    for (const std::int64_t outliers : {0, 3, 9}) {
      const EngineOptions options = selecting(6, outliers);
      const KvPlan plan = request_plan(model, later, true);
      const KvPlan of_run = plan_with(plan, options);
      const auto engine = testing::load(model, plan, options);
      CacheForecast forecast(of_run, KvDtype::kFloat32, 4);
      Sequence sequence = engine->new_sequence();
      std::size_t first = 0;
      std::int64_t most = 0;
      for (const std::size_t last : {std::size_t{71}, std::size_t{110}}) {
        engine->prefill({&sequence}, {part(ids, first, last)}, Engine::Rows::kLast);
        most = std::max(most, forecast.read(static_cast<std::int64_t>(last - first)));
        EXPECT_LE(engine->pool().peak_bytes(), most);
        EXPECT_EQ(forecast.bytes(), sequence.cache().allocated_bytes());
        testing::expect_exact_bytes(*engine, sequence);
        first = last;
      }
      engine->extend({&sequence}, {part(ids, 110, kTokens)}, Engine::Rows::kLast);
      forecast.extend(kTokens - 110);
      EXPECT_EQ(forecast.bytes(), sequence.cache().allocated_bytes());
      testing::expect_exact_bytes(*engine, sequence);
      const GroupTokens tokens = sequence.cache().tokens().front();
      EXPECT_EQ(tokens.outliers, outliers);
      EXPECT_GT(sequence.cache().bytes().chunks, 0);
    }
  }
}

TEST(SelectiveEngine, BelongsToItsSequence) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const auto engine =
      testing::load(model, request_plan(model, LaterTokens::kProject, true), selecting(5, 2));
  const Row a = text_of(model, 8), b = text_of(model, 9);
  Sequence first = engine->new_sequence(), second = engine->new_sequence();
  engine->prefill({&first, &second}, {part(a, 0, kPrompt), part(b, 0, 90)}, Engine::Rows::kLast);
  Sequence fork = first.fork();
  const auto batch = engine->extend(
      {&first, &second}, {part(a, kPrompt, kTokens), part(b, 90, 100)}, Engine::Rows::kAll);
  const auto other = engine->extend({&fork}, {part(b, kPrompt, kTokens)}, Engine::Rows::kAll);
  EXPECT_TRUE(
      tensors_close(batch[0], cached_logits(*engine, a, kPrompt, 1).slice(0, kPrompt), kRounding));
  EXPECT_TRUE(tensors_close(batch[1], cached_logits(*engine, part(b, 0, 100), 90, 1).slice(0, 90),
                            kRounding));
  Row forked = part(a, 0, kPrompt);
  forked.insert(forked.end(), b.begin() + kPrompt, b.end());
  EXPECT_TRUE(tensors_close(other[0], cached_logits(*engine, forked, kPrompt, 1).slice(0, kPrompt),
                            kRounding));
}

// Pieces in which a prompt is read make no difference.
TEST(SelectiveEngine, ReadsPromptsInPieces) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const Row ids = text_of(model, 10);
  const KvPlan plan = request_plan(model, LaterTokens::kExact);
  EngineOptions options = selecting(5, 3);
  const at::Tensor expected = cached_logits(*testing::load(model, plan, options), ids, kPrompt, 1);
  options.prefill_chunk = 13;
  EXPECT_TRUE(tensors_close(cached_logits(*testing::load(model, plan, options), ids, kPrompt, 1),
                            expected, kRounding));
}

std::string refusal(const SyntheticCheckpoint& model, const KvPlan& plan, EngineOptions options) {
  return error_of([&] { testing::load(model, plan, options); });
}

TEST(SelectiveEngine, IsRefusedWhereNothingIsRebuilt) {
  const SyntheticCheckpoint model{.model_type = "llama"};
  const KvPlan request = principal_plan(model, 2, LatentBasis::kRequest, false, 4, 6);
  EXPECT_THAT(refusal(model, plain_plan(model.num_layers, model.num_kv_heads, model.head_dim),
                      selecting(5, 2)),
              HasSubstr("--method xkv"));
  EXPECT_THAT(
      refusal(model, testing::grouped_plan(model, 2, 20, testing::small_policy(MergeRule::kLs)),
              selecting(5, 2)),
      HasSubstr("--method xkv"));
  EngineOptions policy = selecting(5, 2);
  policy.policy = parse_token_policy("snapkv:budget=40");
  EXPECT_THAT(refusal(model, request, policy), HasSubstr("leave one of them out"));
  const SyntheticCheckpoint windowed{.model_type = "mistral", .window = 40};
  EXPECT_THAT(refusal(windowed, principal_plan(windowed, 2, LatentBasis::kRequest, false, 4, 6),
                      selecting(5, 2)),
              HasSubstr("sliding window of 40 tokens"));
}

}  // namespace
}  // namespace kvc::selective_engine_test

// Groups whose principal directions are a request's own, found when its prompt ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::request_cache_test {
namespace {

using testing::cached_logits;
using ::testing::HasSubstr;
using testing::kRounding;
using testing::principal_plan;
using testing::random_ids;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

constexpr std::size_t kPrompt = 60, kTokens = 90;

Row text_of(const SyntheticCheckpoint& model, std::uint64_t seed) {
  return random_ids(1, kTokens, model.vocab_size, seed).front();
}

// The same token over and over has the same keys before RoPE and the same values in every layer.
Row repeated_then_random(const SyntheticCheckpoint& model, std::uint64_t seed) {
  Row ids = text_of(model, seed);
  std::fill_n(ids.begin(), kPrompt, 7);
  return ids;
}

KvPlan request_plan(const SyntheticCheckpoint& model, LaterTokens later, bool generated,
                    std::int64_t rank = 4) {
  KvPlan plan = principal_plan(model, 2, LatentBasis::kRequest, false, rank, rank + 2);
  plan.request->later = later;
  plan.request->compress_generated = generated;
  plan.compression.block_tokens = generated ? 12 : 5;
  plan.check();
  return plan;
}

// Rank 1 holds a prompt of one token exactly, wherever RoPE turned it.
TEST(RequestDirections, AreExactWhereTheTextHasNoMore) {
  const testing::OneThread one;
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    const SyntheticCheckpoint model{.model_type = family};
    const Row ids = repeated_then_random(model, 8);
    const at::Tensor expected = testing::plain_logits(model, ids);
    for (const int layers : {1, 2, 3}) {
      for (const bool joint : {false, true}) {
        for (const BasisSolver solver : {BasisSolver::kEigh, BasisSolver::kSubspace}) {
          KvPlan plan = principal_plan(model, layers, LatentBasis::kRequest, joint, 1, 2);
          plan.request->solver = solver;
          const auto engine = testing::load(model, plan);
          Sequence sequence = engine->new_sequence();
          EXPECT_TRUE(
              tensors_close(cached_logits(*engine, ids, kPrompt, 1, sequence), expected, kRounding))
              << family << ", groups of " << layers << (joint ? ", joint" : "");
          const GroupTokens tokens = sequence.cache().tokens().front();
          EXPECT_EQ(tokens.merged, 52);  // but 2 sinks and a window of 6
          EXPECT_EQ(tokens.pending, 38);
          EXPECT_EQ(tokens.bases, 1);
          testing::expect_exact_bytes(*engine, sequence);
        }
      }
    }
  }
}

// A prompt is read exactly, whatever is kept of it.
TEST(RequestDirections, LeaveThePromptsLogitsAsTheyAre) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const Row ids = text_of(model, 9);
  const at::Tensor expected = testing::plain_logits(model, ids).narrow(0, 0, kPrompt);
  for (const std::int64_t chunk : {0, 16}) {
    EngineOptions options;
    options.prefill_chunk = chunk;
    const auto engine =
        testing::load(model, request_plan(model, LaterTokens::kExact, false), options);
    Sequence sequence = engine->new_sequence();
    const at::Tensor logits =
        engine->prefill({&sequence}, {testing::part(ids, 0, kPrompt)}, Engine::Rows::kAll).front();
    EXPECT_TRUE(tensors_close(logits, expected, kRounding));
    EXPECT_EQ(sequence.cache().tokens().front().merged, 52);
  }
}

TEST(RequestDirections, ArePlainBelowTheBreakEven) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const KvPlan plan = request_plan(model, LaterTokens::kExact, false, 8);
  const std::int64_t least = break_even_tokens(plan, KvDtype::kFloat32);
  ASSERT_GT(least, 8);
  const Row ids = text_of(model, 10);
  const auto engine = testing::load(model, plan);
  const auto kept = static_cast<std::size_t>(least + 8);  // sinks and window besides
  for (const std::size_t length : {kept - 1, kept}) {
    Sequence sequence = engine->new_sequence();
    engine->prefill({&sequence}, {testing::part(ids, 0, length)}, Engine::Rows::kLast);
    EXPECT_EQ(sequence.cache().tokens().front().bases, length == kept ? 1 : 0) << length;
    testing::expect_exact_bytes(*engine, sequence);
  }
}

// Later turns: exact ones equal the original where the first turn lost nothing.
TEST(RequestDirections, KeepLaterTurnsAsThePlanSays) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const Row ids = repeated_then_random(model, 11);
  const at::Tensor expected = testing::plain_logits(model, ids);
  for (const LaterTokens later :
       {LaterTokens::kExact, LaterTokens::kProject, LaterTokens::kNewSegment}) {
    const KvPlan plan = request_plan(model, later, false);
    const auto engine = testing::load(model, plan, testing::pages_of(4));
    CacheForecast forecast(plan, KvDtype::kFloat32, 4);
    Sequence sequence = engine->new_sequence();
    std::vector<at::Tensor> logits;
    std::size_t first = 0;
    for (const std::size_t last : {kPrompt, std::size_t{85}}) {
      logits.push_back(
          engine->prefill({&sequence}, {testing::part(ids, first, last)}, Engine::Rows::kAll)
              .front());
      forecast.read(static_cast<std::int64_t>(last - first));
      EXPECT_EQ(forecast.bytes(), sequence.cache().allocated_bytes());
      testing::expect_exact_bytes(*engine, sequence);
      first = last;
    }
    const GroupTokens tokens = sequence.cache().tokens().front();
    EXPECT_EQ(tokens.merged, later == LaterTokens::kExact ? 52 : 77);
    EXPECT_EQ(tokens.bases, later == LaterTokens::kNewSegment ? 2 : 1);
    EXPECT_TRUE(tensors_close(at::cat(logits), expected.narrow(0, 0, 85), kRounding));
    const at::Tensor rest =
        engine->extend({&sequence}, {testing::part(ids, 85, kTokens)}, Engine::Rows::kAll).front();
    const bool same = static_cast<bool>(tensors_close(rest, expected.narrow(0, 85, 5), kRounding));
    EXPECT_EQ(same, later == LaterTokens::kExact);
  }
}

TEST(RequestDirections, CompressGeneratedTokensBlockByBlock) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const Row ids = text_of(model, 12);
  for (const LaterTokens later : {LaterTokens::kProject, LaterTokens::kNewSegment}) {
    const KvPlan plan = request_plan(model, later, true, 2);
    const auto engine = testing::load(model, plan);
    Sequence single = engine->new_sequence(), chunked = engine->new_sequence();
    const at::Tensor logits = cached_logits(*engine, ids, kPrompt, 1, single);
    EXPECT_TRUE(
        tensors_close(cached_logits(*engine, ids, kPrompt, 30, chunked), logits, kRounding));
    const GroupTokens tokens = single.cache().tokens().front();
    EXPECT_EQ(tokens.merged, 52 + 24);
    EXPECT_EQ(tokens.bases, later == LaterTokens::kNewSegment ? 3 : 1);
    CacheForecast forecast(plan, KvDtype::kFloat32, engine->pool().page_tokens());
    forecast.read(kPrompt);
    forecast.extend(kTokens - kPrompt);
    EXPECT_EQ(forecast.bytes(), single.cache().allocated_bytes());
  }
}

TEST(RequestDirections, RefuseBlocksThatCannotPayForABasis) {
  const SyntheticCheckpoint model{.model_type = "llama"};
  KvPlan plan = request_plan(model, LaterTokens::kNewSegment, true, 12);
  plan.compression.block_tokens = 3;
  EXPECT_THAT(error_of([&] { testing::load(model, plan); }), HasSubstr("--recompress-every"))
      << "a basis for three tokens";
}

// A batch is as its rows, and forks go their own ways.
TEST(RequestDirections, BelongToTheirSequence) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const auto engine = testing::load(model, request_plan(model, LaterTokens::kNewSegment, false));
  const Row a = text_of(model, 13), b = text_of(model, 14);
  Sequence first = engine->new_sequence(), second = engine->new_sequence();
  engine->prefill({&first, &second}, {testing::part(a, 0, kPrompt), testing::part(b, 0, 40)},
                  Engine::Rows::kLast);
  Sequence fork = first.fork();
  const auto batch = engine->extend({&first, &second},
                                    {testing::part(a, kPrompt, kTokens), testing::part(b, 40, 50)},
                                    Engine::Rows::kAll);
  const auto other =
      engine->extend({&fork}, {testing::part(b, kPrompt, kTokens)}, Engine::Rows::kAll);
  EXPECT_TRUE(tensors_close(
      batch[0], cached_logits(*engine, a, kPrompt, kTokens).narrow(0, kPrompt, 30), kRounding));
  EXPECT_TRUE(tensors_close(
      batch[1], cached_logits(*engine, testing::part(b, 0, 50), 40, 50).narrow(0, 40, 10),
      kRounding));
  Row forked = testing::part(a, 0, kPrompt);
  forked.insert(forked.end(), b.begin() + kPrompt, b.end());
  EXPECT_TRUE(tensors_close(other[0],
                            cached_logits(*engine, forked, kPrompt, kTokens).narrow(0, kPrompt, 30),
                            kRounding));
}

}  // namespace
}  // namespace kvc::request_cache_test

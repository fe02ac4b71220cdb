// Principal directions of a model's own latents (multi-head latent attention), whose rotary keys stay exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/cache_plan.h"
#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::own_latents_test {
namespace {

using testing::cached_logits;
using testing::kRounding;
using testing::random_ids;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

constexpr std::size_t kPrompt = 60, kTokens = 90;
constexpr std::int64_t kLatent = 16;  // of the synthetic checkpoint
constexpr double kNoise = 1e-8;       // of a squared error where nothing is lost

const SyntheticCheckpoint kModel{.model_type = "deepseek_v2"};

Row text_of(std::uint64_t seed) { return random_ids(1, kTokens, kModel.vocab_size, seed).front(); }

// rank 0: of all numbers.
KvPlan latents_plan(int layers_per_group, LatentBasis basis, std::int64_t rank) {
  KvPlan plan = plain_plan(parse_model_config(testing::synthetic_config(kModel), "config.json"));
  const KvPlan of_heads = testing::principal_plan(kModel, layers_per_group, basis, true, 1, 1);
  plan.method = of_heads.method;
  plan.compression = of_heads.compression;
  plan.layers = of_heads.layers;
  plan.groups = of_heads.groups;
  plan.request = of_heads.request;
  for (LatentGroup& group : plan.groups) {
    group.rank = rank > 0 ? rank : group.num_layers * kLatent;
  }
  plan.check();
  return plan;
}

// Layers in groups of 3 leave a last group of one.
TEST(OwnLatents, AreExactInAllCalibratedDirections) {
  const testing::OneThread one;
  const Row ids = text_of(3);
  const at::Tensor expected = testing::plain_logits(kModel, ids);
  for (const int layers : {1, 2, 3}) {
    const auto engine = testing::load(kModel, latents_plan(layers, LatentBasis::kCalibrated, 0));
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}}) {
      Sequence sequence = engine->new_sequence();
      EXPECT_TRUE(
          tensors_close(cached_logits(*engine, ids, kPrompt, chunk, sequence), expected, kRounding))
          << "groups of " << layers;
      EXPECT_GE(sequence.cache().tokens().front().merged, 75);
      testing::expect_exact_bytes(*engine, sequence);
    }
  }
}

// The same token over and over has the same latent in every layer.
TEST(OwnLatents, OfOneTokenNeedOneDirectionOfTheRequest) {
  const testing::OneThread one;
  Row ids = text_of(4);
  std::fill_n(ids.begin(), kPrompt, 7);
  const at::Tensor expected = testing::plain_logits(kModel, ids);
  for (const int layers : {1, 2, 3}) {
    for (const BasisSolver solver : {BasisSolver::kEigh, BasisSolver::kSubspace}) {
      KvPlan plan = latents_plan(layers, LatentBasis::kRequest, 1);
      plan.request->solver = solver;
      const auto engine = testing::load(kModel, plan);
      Sequence sequence = engine->new_sequence();
      EXPECT_TRUE(
          tensors_close(cached_logits(*engine, ids, kPrompt, 1, sequence), expected, kRounding))
          << "groups of " << layers;
      const GroupTokens tokens = sequence.cache().tokens().front();
      EXPECT_EQ(tokens.merged, 52);  // but 2 sinks and a window of 6
      EXPECT_EQ(tokens.pending, 38);
      EXPECT_EQ(tokens.bases, 1);
      testing::expect_exact_bytes(*engine, sequence);
    }
  }
}

TEST(OwnLatents, LeaveThePromptsLogitsAndLoseWithTheRank) {
  const testing::OneThread one;
  const Row ids = text_of(5);
  const at::Tensor expected = testing::plain_logits(kModel, ids);
  double before = 1e9;
  for (const std::int64_t rank : {2, 8, 16, 31}) {
    for (const std::int64_t chunk : {0, 16}) {
      EngineOptions options;
      options.prefill_chunk = chunk;
      const auto engine =
          testing::load(kModel, latents_plan(2, LatentBasis::kRequest, rank), options);
      Sequence sequence = engine->new_sequence();
      const at::Tensor logits = cached_logits(*engine, ids, kPrompt, 1, sequence);
      EXPECT_TRUE(
          tensors_close(logits.narrow(0, 0, kPrompt), expected.narrow(0, 0, kPrompt), kRounding));
      const double error = (logits - expected).square().sum().item<double>();
      EXPECT_LT(error, chunk == 0 ? before : 1.01 * before + kNoise);
      before = error;
    }
  }
}

TEST(OwnLatents, TakeTheBytesThatAreForecastOverTurns) {
  const testing::OneThread one;
  const Row ids = text_of(6);
  for (const LaterTokens later :
       {LaterTokens::kExact, LaterTokens::kProject, LaterTokens::kNewSegment}) {
    for (const char* dtype : {"float32", "float16"}) {
      KvPlan plan = latents_plan(2, LatentBasis::kRequest, 4);
      plan.request->later = later;
      EngineOptions options = testing::cache_of(dtype);
      options.page_tokens = 4;
      const auto engine = testing::load(kModel, plan, options);
      Sequence sequence = engine->new_sequence();
      CacheForecast forecast(plan, engine->kv_dtype(), 4);
      for (const auto& [first, last] : {std::pair(0, 40), std::pair(40, 85)}) {
        const auto begin = static_cast<std::size_t>(first), end = static_cast<std::size_t>(last);
        engine->prefill({&sequence}, {testing::part(ids, begin, end)}, Engine::Rows::kLast);
        forecast.read(last - first);
        EXPECT_EQ(forecast.bytes(), sequence.cache().allocated_bytes());
        testing::expect_exact_bytes(*engine, sequence);
      }
      const GroupTokens tokens = sequence.cache().tokens().front();
      EXPECT_EQ(tokens.merged, later == LaterTokens::kExact ? 32 : 77);
      EXPECT_EQ(tokens.bases, later == LaterTokens::kNewSegment ? 2 : 1);
    }
  }
}

// There is nothing to rebuild into what is left.
TEST(OwnLatents, RunUnderABudget) {
  const testing::OneThread one;
  const Row ids = text_of(7);
  EngineOptions options;
  options.memory_bytes = 1 << 20;
  const KvPlan plan = latents_plan(2, LatentBasis::kCalibrated, 8);
  const auto engine = testing::load(kModel, plan, options), free = testing::load(kModel, plan);
  EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, kPrompt, 1),
                            cached_logits(*free, ids, kPrompt, 1), kRounding));
}

}  // namespace
}  // namespace kvc::own_latents_test

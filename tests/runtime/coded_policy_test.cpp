// Token policies on coded layers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/policy_turns.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::CodedPlanOptions;
using testing::CodedScope;
using ::testing::HasSubstr;
using testing::kRounding;
using testing::part;
using testing::random_ids;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
using testing::Turns;
using testing::two_turns;
using testing::under;

// Budgets that leave tiles of 32 outside 2 sinks and a window of 6, and one that leaves none.
constexpr const char* kSmall[] = {"streamingllm:sink=2,window=78",
                                  "h2o:budget=80",
                                  "h2o:budget=30",
                                  "h2o:budget=0.5,sink=1",
                                  "zeromerge:budget=80,residual=0",
                                  "zeromerge:budget=80,residual=0,decode=released",
                                  "snapkv:budget=80,window=5",
                                  "snapkv:budget=0.4,window=5",
                                  "pyramidkv:budget=60,window=5,beta=4"};
constexpr const char* kAmple[] = {"streamingllm:sink=2,window=500", "h2o:budget=500",
                                  "zeromerge:budget=500,residual=0", "snapkv:budget=500",
                                  "pyramidkv:budget=500,window=5,beta=1"};
// What is coded together, and how keys are where they are apart.
struct Form {
  CodedScope scope;
  int bases = 0;
  bool rotated = false;
};
constexpr Form kForms[] = {{CodedScope::kHead},    {CodedScope::kLayer},
                           {CodedScope::kGroup},   {CodedScope::kLayer, 1},
                           {CodedScope::kHead, 4}, {CodedScope::kHead, 4, true}};

constexpr Turns kTurns{.first = 110, .second = 150, .end = 180};

const Row& text() {
  static const Row kIds = random_ids(1, 220, 96, 1).front();
  return kIds;
}

CodedPlanOptions narrow(const Form& form, bool gain) {
  return {.scope = form.scope,
          .coefficients = {0, 2, 3, 0, 5, 1, 2},
          .gain = gain,
          .bases = form.bases,
          .rotated = form.rotated};
}

at::Tensor turns(const Engine& engine, Sequence& sequence) {
  return two_turns(engine, text(), sequence, kTurns);
}
at::Tensor turns(const Engine& engine) {
  Sequence sequence = engine.new_sequence();
  return turns(engine, sequence);
}

std::unique_ptr<Engine> coded(const SyntheticCheckpoint& model, const CodedPlanOptions& options,
                              const std::string& policy, const std::string& kv_dtype = "") {
  return testing::load(model, testing::coded_plan(model, options), under(policy, kv_dtype));
}

TEST(CodedPolicy, AnAmpleBudgetIsTheFullCacheToTheBit) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  for (const Form& form : kForms) {
    for (const char* dtype : {"", "bfloat16"}) {
      const at::Tensor full = turns(*coded(model, narrow(form, true), "full", dtype));
      for (const char* policy : kAmple) {
        EXPECT_TRUE(at::equal(turns(*coded(model, narrow(form, true), policy, dtype)), full))
            << static_cast<int>(form.scope) << " " << form.bases << " " << policy << " " << dtype;
      }
    }
  }
}

TEST(CodedPolicy, ASmallBudgetChangesWhatFollowsThePrompt) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  for (const Form& form : kForms) {
    const at::Tensor full = turns(*coded(model, narrow(form, false), "full"));
    for (const char* policy : kSmall) {
      const at::Tensor small = turns(*coded(model, narrow(form, false), policy));
      EXPECT_TRUE(at::equal(small.slice(0, 0, 110), full.slice(0, 0, 110))) << policy;
      EXPECT_FALSE(tensors_close(small, full, 1e-3)) << policy;
    }
  }
}

// With one KV head a plain layer makes the same choice, and codes of 8 bits of all channels are near its numbers.
TEST(CodedPolicy, KeepsWhatAPlainLayerKeeps) {
  const testing::OneThread one;
  SyntheticCheckpoint model;
  model.num_kv_heads = 1;
  for (const char* policy : kSmall) {
    const auto plain = testing::load_plain(model, under(policy));
    Sequence a = plain->new_sequence();
    const at::Tensor expected = turns(*plain, a);
    const auto engine = coded(model, {.scope = CodedScope::kLayer}, policy);
    Sequence b = engine->new_sequence();
    const at::Tensor actual = turns(*engine, b);
    EXPECT_LT((actual - expected).abs().mean().item<double>(), 0.03) << policy;
    for (int layer = 0; layer < model.num_layers; ++layer) {
      const at::Tensor rows = a.cache().kept_layer(layer).rows.positions().select(1, 0);
      const at::Tensor kept = b.cache().coded(layer).positions().tensor().to(at::kLong);
      ASSERT_EQ(kept.size(0), rows.size(0)) << policy << " layer " << layer;
      const std::int64_t same = at::isin(kept, rows).sum().item<std::int64_t>();
      EXPECT_GE(same, rows.size(0) * 9 / 10) << policy << " layer " << layer;
    }
  }
}

TEST(CodedPolicy, PiecesAndBatchesDoNotMatter) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const Row other = random_ids(1, 147, 96, 2).front();
  // Another order of summation may take a coefficient over the border between two codes.
  constexpr double kOneCode = 5 * kRounding;
  for (const Form& form : kForms) {
    SCOPED_TRACE(fmt::format("{} bases, rotated {}", form.bases, form.rotated));
    for (const char* policy : kSmall) {
      const KvPlan plan = testing::coded_plan(model, narrow(form, true));
      EngineOptions options = under(policy);
      const at::Tensor alone = turns(*testing::load(model, plan, options));
      options.prefill_chunk = 17;
      const auto engine = testing::load(model, plan, options);
      EXPECT_TRUE(tensors_close(turns(*engine), alone, kOneCode)) << policy;
      Sequence a = engine->new_sequence(), b = engine->new_sequence();
      engine->prefill({&b, &a}, {other, part(text(), 0, kTurns.first)}, Engine::Rows::kLast);
      Sequence fork = a.fork();
      const auto logits =
          engine->extend({&b, &a}, {part(other, 0, 40), part(text(), kTurns.first, kTurns.second)},
                         Engine::Rows::kAll);
      const at::Tensor expected = alone.slice(0, kTurns.first, kTurns.second);
      EXPECT_TRUE(tensors_close(logits[1], expected, kOneCode)) << policy;
      const auto again =
          engine->extend({&fork}, {part(text(), kTurns.first, kTurns.second)}, Engine::Rows::kAll);
      EXPECT_TRUE(tensors_close(again[0], expected, kOneCode)) << policy << ", a fork";
    }
  }
}

std::int64_t formula(const Engine& engine, const Sequence& sequence) {
  std::int64_t bytes = 0;
  for (const CodedLayers& layers : coded_layers(engine.plan())) {
    const CodedStore& store = sequence.cache().coded(layers.first_layer);
    EXPECT_EQ(store.num_codes(), tokens_in_blocks(engine.plan(), store.num_rows()));
    bytes += kept_coded_bytes(engine.plan(), engine.policy(), layers.first_layer,
                              {store.num_rows(), store.num_codes()}, engine.kv_dtype(),
                              engine.pool().page_tokens());
  }
  return bytes;
}

TEST(CodedPolicy, BytesAreTheFormulasAndTheForecasts) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const Row ids = random_ids(1, 250, 96, 3).front();
  for (const Form& form : kForms) {
    for (const char* policy : kSmall) {
      SCOPED_TRACE(policy);
      const auto engine = coded(model, narrow(form, true), policy);
      CacheForecast forecast(engine->plan(), engine->kv_dtype(), engine->pool().page_tokens(),
                             MergeSpread::kNone, engine->policy());
      Sequence sequence = engine->new_sequence();
      const auto expect_bytes = [&](const std::string& when) {
        EXPECT_EQ(engine->pool().allocated_bytes(), formula(*engine, sequence)) << when;
        EXPECT_EQ(engine->pool().allocated_bytes(), sequence.cache().allocated_bytes()) << when;
        EXPECT_EQ(engine->pool().allocated_bytes(), forecast.bytes()) << when;
      };
      engine->prefill({&sequence}, {part(ids, 0, 120)}, Engine::Rows::kLast);
      EXPECT_LE(engine->pool().peak_bytes(), forecast.read(120));
      expect_bytes("prompt");
      for (std::size_t i = 120; i < 200; ++i) {
        engine->extend({&sequence}, {{ids[i]}}, Engine::Rows::kLast);
        forecast.extend(1);
        expect_bytes(std::to_string(i));
      }
      engine->prefill({&sequence}, {part(ids, 200, 250)}, Engine::Rows::kLast);
      forecast.read(50);
      expect_bytes("second prompt");
    }
  }
}

// The last tokens and the sinks are among those that stay; no token is held twice.
TEST(CodedPolicy, KeepsTheBudgetsTokens) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  for (const Form& form : kForms) {
    const auto engine = coded(model, narrow(form, false), "h2o:budget=80,sink=3");
    Sequence sequence = engine->new_sequence();
    turns(*engine, sequence);
    const at::Tensor positions = sequence.cache().coded(2).positions().tensor().to(at::kLong);
    const auto* begin = positions.const_data_ptr<std::int64_t>();
    const std::set<std::int64_t> kept(begin, begin + positions.size(0));
    EXPECT_EQ(positions.size(0), 80);
    EXPECT_EQ(kept.size(), 80U);
    for (const std::int64_t position : {0, 1, 2, 219, 218, 200, 181}) {
      EXPECT_TRUE(kept.contains(position)) << position;
    }
  }
}

// Those that were codes before among them.
TEST(CodedPolicy, ExactRowsAreOfTheTokensAtTheirPositions) {
  const testing::OneThread one;
  SyntheticCheckpoint model;
  model.num_layers = 1;  // whose keys do not depend on what attention has seen
  for (const char* policy : {"h2o:budget=80", "snapkv:budget=80,window=5"}) {
    const auto engine = coded(model, {.scope = CodedScope::kLayer}, policy);
    const auto full = testing::load_plain(model);
    Sequence some = engine->new_sequence(), all = full->new_sequence();
    turns(*engine, some);
    turns(*full, all);
    const CodedStore& store = some.cache().coded(0);
    ASSERT_EQ(store.num_codes(), tokens_in_blocks(engine->plan(), store.num_rows()));
    const at::Tensor values = all.cache().plain_layer(0).value.rows(at::kFloat);
    const at::Tensor exact = values.index_select(0, store.positions().exact.rows(at::kInt));
    EXPECT_LT((store.exact[0].value.rows(at::kFloat) - exact).abs().mean().item<double>(), 0.02);
  }
}

TEST(CodedPolicy, RefusesWhatItCannotDo) {
  const auto refusal = [](const std::string& policy) {
    return error_of([&] { coded({}, {}, policy); });
  };
  EXPECT_THAT(refusal("h2o:compress-at=chunk"), HasSubstr("use compress-at=end"));
  EXPECT_THAT(refusal("streamingllm:pos=cache"), HasSubstr("use pos=true"));
  EXPECT_THAT(refusal("zeromerge"), HasSubstr("use residual=0"));
  EXPECT_THAT(refusal("think"), HasSubstr("use snapkv"));
}

}  // namespace
}  // namespace kvc

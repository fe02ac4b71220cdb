// Token policies on pairs of layers that share directions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "runtime/memory/kept_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/policy_reference.h"
#include "tests/runtime/policy_turns.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;
using testing::kRounding;
using testing::part;
using testing::random_ids;
using testing::ReferenceSet;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
using testing::two_turns;
using testing::under;

constexpr const char* kAmple[] = {"streamingllm:sink=2,window=500", "h2o:budget=500",
                                  "zeromerge:budget=500,residual=0", "snapkv:budget=500",
                                  "pyramidkv:budget=500,window=5,beta=1"};
constexpr const char* kSmall[] = {
    "streamingllm:sink=2,window=14", "h2o:budget=16",
    "h2o:budget=0.3,sink=1",         "zeromerge:budget=16,residual=0,decode=released",
    "snapkv:budget=16,window=5",     "pyramidkv:budget=16,window=5,beta=4"};

KvPlan paired_plan(double retained) {
  const SyntheticCheckpoint model;
  KvPlan plan = plain_plan(model.num_layers, model.num_kv_heads, model.head_dim);
  plan.method = "minicache";
  plan.layers[2] = plan.layers[3] = KvSource::kPaired;
  plan.paired = PairedLayers{.first_layers = {2}, .retained = retained};
  plan.check();
  return plan;
}

const Row& text() {
  static const Row kIds = random_ids(1, 130, 96, 1).front();
  return kIds;
}

at::Tensor turns(const Engine& engine) {
  Sequence sequence = engine.new_sequence();
  return two_turns(engine, text(), sequence);
}

TEST(PairPolicy, AnAmpleBudgetIsTheFullCacheToTheBit) {
  const testing::OneThread one;
  for (const char* dtype : {"float32", "bfloat16"}) {
    const at::Tensor full = turns(*testing::load({}, paired_plan(0.2), under("full", dtype)));
    for (const char* policy : kAmple) {
      EXPECT_TRUE(
          at::equal(turns(*testing::load({}, paired_plan(0.2), under(policy, dtype))), full))
          << policy << " " << dtype;
    }
  }
}

TEST(PairPolicy, PiecesAndBatchesDoNotMatter) {
  const testing::OneThread one;
  for (const char* policy : kSmall) {
    SCOPED_TRACE(policy);
    testing::expect_same_in_pieces_and_batches(
        [](const EngineOptions& options) { return testing::load({}, paired_plan(0.2), options); },
        under(policy), text());
  }
}

// The choice of both layers and all heads from dense scores; then what is left of the prompt becomes directions.
TEST(PairPolicy, FollowsTheDefinition) {
  const testing::OneThread one;
  const std::vector<ReferenceSet> sets{{{0}}, {{1}}, {{2, 3}, true}};
  for (const double retained : {0.0, 0.3}) {
    const KvPlan plan = paired_plan(retained);
    for (const char* policy :
         {"streamingllm:sink=2,window=14", "h2o:budget=16", "zeromerge:budget=16,residual=0,sink=2",
          "snapkv:budget=16,window=5"}) {
      testing::PolicyReference reference({}, plan, parse_token_policy(policy), sets);
      const at::Tensor expected = testing::reference_turns(reference, text(), {});
      const auto engine = testing::load({}, plan, under(policy));
      Sequence sequence = engine->new_sequence();
      EXPECT_TRUE(tensors_close(two_turns(*engine, text(), sequence), expected, 5 * kRounding))
          << policy << " " << retained;
      const at::Tensor kept = sequence.cache().pair(2).positions->tensor(at::kLong);
      EXPECT_TRUE(at::equal(std::get<0>(kept.sort()), at::tensor(reference.kept(2, 0), at::kLong)))
          << policy << " " << retained;
    }
  }
}

TEST(PairPolicy, RowsAreOfTheTokensAtTheirPositions) {
  const testing::OneThread one;
  for (const char* policy : {"h2o:budget=16", "snapkv:budget=16,window=5"}) {
    const auto engine = testing::load({}, paired_plan(0.3), under(policy));
    Sequence sequence = engine->new_sequence();
    two_turns(*engine, text(), sequence);
    const PairStore& pair = sequence.cache().pair(2);
    const at::Tensor positions = pair.positions->tensor(at::kLong);
    EXPECT_EQ(std::get<0>(at::_unique(positions)).size(0), positions.size(0));
    EXPECT_EQ(positions.size(0), pair.num_rows());
    EXPECT_EQ(positions.max().item<std::int64_t>(), 129);
    // Retained vectors have the norms of the rows that they stand for.
    for (const PairedRows* rows : {&pair.key, &pair.value}) {
      const at::Tensor index = rows->retained_rows.rows(at::kInt).to(at::kLong);
      const at::Tensor norms = rows->retained.rows(at::kFloat).square().sum(-1).sqrt();
      EXPECT_TRUE(tensors_close(norms, rows->norms.rows(at::kFloat).index_select(0, index), 1e-4));
    }
  }
}

TEST(PairPolicy, BytesAreTheFormulasAndWithinTheForecast) {
  const testing::OneThread one;
  const Row ids = random_ids(1, 250, 96, 3).front();
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const char* policy : kSmall) {
      SCOPED_TRACE(std::string(policy) + " " + dtype);
      EngineOptions options = under(policy, dtype);
      options.page_tokens = 4;
      const auto engine = testing::load({}, paired_plan(0.2), options);
      KeptForecast forecast(engine->plan(), engine->policy(), engine->kv_dtype(), 4);
      Sequence sequence = engine->new_sequence();
      const auto expect_bytes = [&](std::size_t when) {
        std::int64_t bytes =
            kept_pair_bytes(engine->plan(), engine->policy(), sequence.cache().pair(2).tokens(),
                            engine->kv_dtype(), 4);
        for (const KeptLayer& layer : sequence.cache().all_kept()) {
          bytes += kept_layer_bytes(engine->plan(), engine->policy(), layer.rows.tokens(),
                                    engine->kv_dtype(), 4);
        }
        ASSERT_EQ(engine->pool().allocated_bytes(), bytes) << when;
        ASSERT_EQ(engine->pool().allocated_bytes(), sequence.cache().allocated_bytes()) << when;
        ASSERT_LE(engine->pool().allocated_bytes(), forecast.bytes()) << when;
      };
      engine->prefill({&sequence}, {part(ids, 0, 190)}, Engine::Rows::kLast);
      EXPECT_LE(engine->pool().peak_bytes(), forecast.read(190, 190));
      for (std::size_t i = 190; i < 230; ++i) {
        expect_bytes(i);
        engine->extend({&sequence}, {{ids[i]}}, Engine::Rows::kLast);
        forecast.extend(1);
      }
      engine->prefill({&sequence}, {part(ids, 230, 250)}, Engine::Rows::kLast);
      forecast.read(20, 250);
      expect_bytes(250);
    }
  }
}

TEST(PairPolicy, RefusesWhatItCannotDo) {
  const auto refusal = [](const std::string& policy) {
    try {
      testing::load({}, paired_plan(0.05), under(policy));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(refusal("h2o:compress-at=chunk"), HasSubstr("use compress-at=end"));
  EXPECT_THAT(refusal("streamingllm:pos=cache"), HasSubstr("use pos=true"));
  EXPECT_THAT(refusal("zeromerge"), HasSubstr("use residual=0"));
  EXPECT_THAT(refusal("think"), HasSubstr("use snapkv"));
}

}  // namespace
}  // namespace kvc

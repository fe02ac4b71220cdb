// Token policies on plans with fused layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/policy_reference.h"
#include "tests/runtime/policy_turns.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::fused_policy_test {
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

constexpr const char* kAmple[] = {"streamingllm:sink=2,window=500",
                                  "streamingllm:sink=2,window=500,pos=cache",
                                  "h2o:budget=500",
                                  "zeromerge:budget=500,residual=0",
                                  "snapkv:budget=500",
                                  "pyramidkv:budget=500,window=5,beta=1"};
constexpr const char* kSmall[] = {"streamingllm:sink=2,window=14",
                                  "streamingllm:sink=2,window=14,pos=cache",
                                  "h2o:budget=16",
                                  "h2o:budget=0.3,sink=1",
                                  "zeromerge:budget=16,residual=0",
                                  "zeromerge:budget=16,residual=0,decode=released",
                                  "snapkv:budget=16,window=5",
                                  "pyramidkv:budget=16,window=5,beta=4"};
constexpr const char* kMerging[] = {
    "zeromerge:budget=16", "zeromerge:budget=16,residual=3",
    "zeromerge:budget=0.3,sink=2,residual=2,prefill-merge=contiguous"};

SyntheticCheckpoint model_of() { return {.num_layers = 6, .head_dim = 16}; }

struct NamedPlan {
  std::string name;
  KvPlan plan;
  std::vector<ReferenceSet> sets;
  bool merges = true;  // slots of averages go with it
};

// Six layers, of which 0 and 2 are read by the upper ones, and two pairs of neighbours beside two layers of their own.
std::vector<NamedPlan> plans() {
  const SyntheticCheckpoint model = model_of();
  std::vector<NamedPlan> plans;
  const std::vector<ReferenceSet> upper{{{0, 2, 3, 4, 5}, false}, {{1}, false}};
  std::vector<ReferenceSet> mixed = upper;
  mixed[0].shares_heads = true;
  const auto fused = [&](FusionForm form, int sources) {
    return testing::fused_upper_plan(model, form, sources);
  };
  plans.push_back({"channel of two", fused(FusionForm::kChannel, 2), upper});
  plans.push_back({"channel of one", fused(FusionForm::kChannel, 1), upper});
  plans.push_back({"complex", fused(FusionForm::kComplex, 2), upper});
  plans.push_back({"full", fused(FusionForm::kFull, 2), mixed, false});
  plans.push_back({"heads", fused(FusionForm::kChannel, 2), mixed});
  plans.back().plan.fused[1].key_heads = {1, 0, 0, 1};
  KvPlan pairs = plain_plan(6, model.num_kv_heads, model.head_dim);
  pairs.method = "cla";
  for (const int layer : {2, 5}) {
    pairs.layers[static_cast<std::size_t>(layer)] = KvSource::kFused;
    pairs.fused.push_back(
        {.layer = layer, .key_sources = {layer - 1}, .value_sources = {layer - 1}});
  }
  pairs.check();
  plans.push_back({"pairs", pairs, {{{0}}, {{1, 2}}, {{3}}, {{4, 5}}}});
  return plans;
}

std::vector<std::string> small_of(const NamedPlan& named) {
  std::vector<std::string> policies(std::begin(kSmall), std::end(kSmall));
  if (named.merges) {
    policies.insert(policies.end(), std::begin(kMerging), std::end(kMerging));
  }
  return policies;
}

const Row& text() {
  static const Row kIds = random_ids(1, 130, 96, 1).front();
  return kIds;
}

at::Tensor turns(const Engine& engine) {
  Sequence sequence = engine.new_sequence();
  return two_turns(engine, text(), sequence);
}

// A prompt that leaves codes, more of them, a second prompt, more again.
at::Tensor long_turns(const Engine& engine) {
  Sequence sequence = engine.new_sequence();
  return two_turns(engine, random_ids(1, 250, 96, 4).front(), sequence,
                   {.first = 170, .second = 210, .end = 230});
}

TEST(FusedPolicy, AnAmpleBudgetIsTheFullCacheToTheBit) {
  const testing::OneThread one;
  for (const NamedPlan& named : plans()) {
    for (const char* dtype : {"float32", "bfloat16", "int8"}) {
      const at::Tensor full =
          long_turns(*testing::load(model_of(), named.plan, under("full", dtype)));
      for (const char* policy : kAmple) {
        EXPECT_TRUE(at::equal(
            long_turns(*testing::load(model_of(), named.plan, under(policy, dtype))), full))
            << named.name << " " << policy << " " << dtype;
      }
    }
  }
}

TEST(FusedPolicy, PiecesAndBatchesDoNotMatter) {
  const testing::OneThread one;
  for (const NamedPlan& named : plans()) {
    for (const std::string& policy : small_of(named)) {
      SCOPED_TRACE(named.name + " " + policy);
      testing::expect_same_in_pieces_and_batches(
          [&](const EngineOptions& options) {
            return testing::load(model_of(), named.plan, options);
          },
          under(policy), text());
    }
  }
}

// Two prompts with tokens behind each: the choice from dense scores of all layers of a set, averages of what every
// layer would have read of the members, one softmax.
TEST(FusedPolicy, FollowsTheDefinition) {
  const testing::OneThread one;
  for (const NamedPlan& named : plans()) {
    for (const std::string policy :
         {"h2o:budget=16", "zeromerge:budget=16,residual=0,sink=2", "zeromerge:budget=16",
          "zeromerge:budget=18,residual=3", "snapkv:budget=16,window=5,pool=3",
          "streamingllm:sink=2,window=14"}) {
      if (!named.merges && policy.find("residual=0") == std::string::npos &&
          policy.starts_with("zeromerge")) {
        continue;
      }
      testing::PolicyReference reference(model_of(), named.plan, parse_token_policy(policy),
                                         named.sets);
      const at::Tensor expected = testing::reference_turns(reference, text(), {});
      const auto engine = testing::load(model_of(), named.plan, under(policy));
      Sequence sequence = engine->new_sequence();
      const at::Tensor actual = two_turns(*engine, text(), sequence);
      EXPECT_TRUE(tensors_close(actual, expected, 5 * kRounding)) << named.name << " " << policy;
      for (const ReferenceSet& set : named.sets) {
        const at::Tensor positions =
            sequence.cache().kept_layer(set.layers.front()).rows.positions();
        for (std::int64_t head = 0; head < positions.size(1); ++head) {
          EXPECT_TRUE(at::equal(std::get<0>(positions.select(1, head).sort()),
                                at::tensor(reference.kept(set.layers.front(), head), at::kLong)))
              << named.name << " " << policy << " layer " << set.layers.front();
        }
      }
    }
  }
}

// Contexts of codes stay near those of numbers until rounding makes another choice.
TEST(FusedPolicy, IntegersKeepWhatNumbersKeep) {
  const testing::OneThread one;
  for (const NamedPlan& named : plans()) {
    for (const char* policy : {"h2o:budget=24", "snapkv:budget=200"}) {
      const at::Tensor exact = turns(*testing::load(model_of(), named.plan, under(policy)));
      const auto distance = [&](const char* dtype) {
        return (turns(*testing::load(model_of(), named.plan, under(policy, dtype))) - exact)
            .slice(0, 40, 60)
            .abs()
            .mean()
            .item<double>();
      };
      EXPECT_LT(distance("float16"), 5e-3) << named.name << " " << policy;
      EXPECT_LT(distance("int8"), 0.1) << named.name << " " << policy;
    }
  }
}

TEST(FusedPolicy, BytesAreTheFormulasAndTheForecasts) {
  const testing::OneThread one;
  const Row ids = random_ids(1, 250, 96, 3).front();
  for (const NamedPlan& named : plans()) {
    for (const char* dtype : {"float32", "int8"}) {
      for (const std::string& policy : small_of(named)) {
        SCOPED_TRACE(named.name + " " + policy + " " + dtype);
        EngineOptions options = under(policy, dtype);
        if (dtype[0] == 'i') {
          options.policy.budget.tokens *= 12;
          options.policy.window_tokens *= options.policy.is_running() ? 15 : 1;
        }
        const auto engine = testing::load(model_of(), named.plan, options);
        const auto formula = [&](const Sequence& sequence) {
          std::int64_t bytes = 0;
          for (const KeptLayer& layer : sequence.cache().all_kept()) {
            bytes += kept_layer_bytes(engine->plan(), engine->policy(), layer.rows.tokens(),
                                      engine->kv_dtype(), engine->pool().page_tokens());
          }
          return bytes;
        };
        CacheForecast forecast(engine->plan(), engine->kv_dtype(), engine->pool().page_tokens(),
                               MergeSpread::kNone, engine->policy());
        Sequence sequence = engine->new_sequence();
        engine->prefill({&sequence}, {part(ids, 0, 190)}, Engine::Rows::kLast);
        EXPECT_LE(engine->pool().peak_bytes(), forecast.read(190));
        for (std::size_t i = 190; i < 230; ++i) {
          ASSERT_EQ(engine->pool().allocated_bytes(), formula(sequence)) << i;
          ASSERT_EQ(engine->pool().allocated_bytes(), forecast.bytes()) << i;
          ASSERT_EQ(sequence.cache().bytes().kept, forecast.bytes());
          engine->extend({&sequence}, {{ids[i]}}, Engine::Rows::kLast);
          forecast.extend(1);
        }
        engine->prefill({&sequence}, {part(ids, 230, 250)}, Engine::Rows::kLast);
        forecast.read(20);
        EXPECT_EQ(engine->pool().allocated_bytes(), formula(sequence));
        EXPECT_EQ(engine->pool().allocated_bytes(), forecast.bytes());
        const CacheForecast again(sequence.cache(), engine->kv_dtype(),
                                  engine->pool().page_tokens());
        EXPECT_EQ(again.bytes(), forecast.bytes());
      }
    }
  }
}

TEST(FusedPolicy, RefusesWhatItCannotDo) {
  const auto refusal = [](const KvPlan& plan, const std::string& policy) {
    return error_of([&] { testing::load(model_of(), plan, under(policy)); });
  };
  const KvPlan full = testing::fused_upper_plan(model_of(), FusionForm::kFull, 2);
  EXPECT_THAT(refusal(full, "zeromerge"), HasSubstr("use residual=0"));
  EXPECT_EQ(refusal(full, "zeromerge:residual=0"), "");
  EXPECT_THAT(refusal(full, "h2o:compress-at=chunk"), HasSubstr("use compress-at=end"));
  EXPECT_THAT(refusal(full, "think"), HasSubstr("use snapkv"));
}

}  // namespace
}  // namespace kvc::fused_policy_test

// Token policies on latent groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "runtime/memory/memory_forecast.h"
#include "runtime/policies/token_policies.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/policy_turns.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::group_policy_test {
namespace {

using ::testing::HasSubstr;
using testing::part;
using testing::random_ids;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
using testing::two_turns;
using testing::under;

constexpr const char* kSmall[] = {"streamingllm:sink=2,window=30",
                                  "h2o:budget=32",
                                  "h2o:budget=0.3,sink=1",
                                  "zeromerge:budget=32",
                                  "zeromerge:budget=32,residual=3",
                                  "zeromerge:budget=32,residual=2,prefill-merge=contiguous",
                                  "zeromerge:budget=0.3,decode=released",
                                  "snapkv:budget=32,window=5",
                                  "pyramidkv:budget=32,window=5,beta=4"};
constexpr const char* kAmple[] = {"streamingllm:sink=2,window=500", "h2o:budget=500",
                                  "zeromerge:budget=500,residual=3", "snapkv:budget=500",
                                  "pyramidkv:budget=500,window=5,beta=1"};

struct NamedPlan {
  const char* name;
  KvPlan plan;
};

SyntheticCheckpoint model_of(const char* type = "llama") {
  return {.model_type = type, .head_dim = 16};
}

std::vector<NamedPlan> plans() {
  const SyntheticCheckpoint model = model_of();
  KvPlan mixed = testing::grouped_plan(model, 2, 16, testing::small_policy(MergeRule::kLs));
  mixed.groups.pop_back();
  mixed.layers[2] = mixed.layers[3] = KvSource::kPlain;
  KvPlan joint = testing::principal_plan(model, 2, LatentBasis::kCalibrated, true, 16, 16);
  joint.compression.sink_tokens = 2;
  joint.compression.window_tokens = 6;
  joint.compression.block_tokens = 5;
  KvPlan split = testing::principal_plan(model, 4, LatentBasis::kCalibrated, false, 32, 32);
  split.compression = joint.compression;
  return {{"commonkv", testing::grouped_plan(model, 2, 16, testing::small_policy(MergeRule::kLs))},
          {"commonkv with plain layers", mixed},
          {"pca", joint},
          {"xkv-static", split},
          {"palu", testing::split_plan(model, 16, 16)}};
}

const Row& text() {
  static const Row kIds = random_ids(1, 130, 96, 1).front();
  return kIds;
}

constexpr testing::Turns kTurns{.first = 50, .second = 70, .end = 100};
// A prompt, some tokens, another prompt, some tokens.
at::Tensor two_turns(const Engine& engine, Sequence& sequence) {
  return two_turns(engine, text(), sequence, kTurns);
}
at::Tensor two_turns(const Engine& engine) {
  Sequence sequence = engine.new_sequence();
  return two_turns(engine, sequence);
}

TEST(GroupPolicy, AnAmpleBudgetIsTheFullCache) {
  const testing::OneThread one;
  for (const NamedPlan& named : plans()) {
    for (const char* dtype : {"float32", "bfloat16", "int8", "int4"}) {
      const at::Tensor full =
          two_turns(*testing::load(model_of(), named.plan, under("full", dtype)));
      for (const char* policy : kAmple) {
        const at::Tensor kept =
            two_turns(*testing::load(model_of(), named.plan, under(policy, dtype)));
        // Latents of commonkv are computed in other batches without a policy, which reads layer by layer.
        const double most = named.name == std::string("commonkv") ? 1e-5 : 0;
        EXPECT_LE((kept - full).abs().max().item<double>(), most)
            << named.name << " " << policy << " " << dtype;
      }
    }
  }
}

TEST(GroupPolicy, ASmallBudgetChangesWhatFollowsThePrompt) {
  const testing::OneThread one;
  for (const NamedPlan& named : plans()) {
    const at::Tensor full = two_turns(*testing::load(model_of(), named.plan));
    for (const char* policy : kSmall) {
      const at::Tensor small = two_turns(*testing::load(model_of(), named.plan, under(policy)));
      EXPECT_TRUE(at::equal(small.slice(0, 0, 50), full.slice(0, 0, 50)))
          << named.name << " " << policy;
      EXPECT_FALSE(tensors_close(small.slice(0, 110), full.slice(0, 110), 1e-3))
          << named.name << " " << policy;
    }
  }
}

TEST(GroupPolicy, PiecesAndBatchesDoNotMatter) {
  const testing::OneThread one;
  for (const NamedPlan& named : plans()) {
    for (const char* policy : kSmall) {
      SCOPED_TRACE(std::string(named.name) + " " + policy);
      testing::expect_same_in_pieces_and_batches(
          [&](const EngineOptions& options) {
            return testing::load(model_of(), named.plan, options);
          },
          under(policy), text(), kTurns);
    }
  }
}

std::int64_t formula(const Engine& engine, const Sequence& sequence) {
  std::int64_t bytes = 0;
  const std::int64_t page = engine.pool().page_tokens();
  for (const KeptLayer& layer : sequence.cache().all_kept()) {
    bytes += kept_layer_bytes(engine.plan(), engine.policy(), layer.rows.tokens(),
                              engine.kv_dtype(), page);
  }
  for (int group = 0; group < static_cast<int>(engine.plan().groups.size()); ++group) {
    bytes += kept_group_bytes(engine.plan(), engine.policy(), group,
                              sequence.cache().group(group).kept_tokens(), engine.kv_dtype(), page);
  }
  return bytes;
}

TEST(GroupPolicy, BytesAreTheFormulasAndWithinTheForecast) {
  const testing::OneThread one;
  const Row ids = random_ids(1, 250, 96, 3).front();
  for (const NamedPlan& named : plans()) {
    for (const char* dtype : {"float32", "int8", "int4"}) {
      for (const char* text : kSmall) {
        SCOPED_TRACE(std::string(named.name) + " " + text + " " + dtype);
        EngineOptions options = under(text, dtype);
        if (dtype[0] == 'i') {
          options.policy.budget.tokens *= 4;
          options.policy.window_tokens *= options.policy.is_running() ? 4 : 1;
        }
        const auto engine = testing::load(model_of(), named.plan, options);
        CacheForecast forecast(engine->plan(), engine->kv_dtype(), engine->pool().page_tokens(),
                               MergeSpread::kNone, engine->policy());
        Sequence sequence = engine->new_sequence();
        engine->prefill({&sequence}, {part(ids, 0, 190)}, Engine::Rows::kLast);
        EXPECT_LE(engine->pool().peak_bytes(), forecast.read(190));
        for (std::size_t i = 190; i < 230; ++i) {
          ASSERT_EQ(engine->pool().allocated_bytes(), formula(*engine, sequence)) << i;
          ASSERT_EQ(engine->pool().allocated_bytes(), sequence.cache().allocated_bytes());
          ASSERT_LE(engine->pool().allocated_bytes(), forecast.bytes()) << i;
          engine->extend({&sequence}, {{ids[i]}}, Engine::Rows::kLast);
          forecast.extend(1);
        }
        engine->prefill({&sequence}, {part(ids, 230, 250)}, Engine::Rows::kLast);
        EXPECT_EQ(engine->pool().allocated_bytes(), formula(*engine, sequence));
      }
    }
  }
}

// All layers of a group hold the same tokens, as many as the budget; sinks and the last ones among them.
TEST(GroupPolicy, KeepsTheBudgetsTokens) {
  const testing::OneThread one;
  for (const NamedPlan& named : plans()) {
    const auto engine = testing::load(model_of(), named.plan, under("zeromerge:budget=32,sink=3"));
    Sequence sequence = engine->new_sequence();
    two_turns(*engine, sequence);
    const LatentStore& store = sequence.cache().group(0);
    EXPECT_EQ(store.num_rows(), 31);
    EXPECT_EQ(store.slots().count()[0], 130 - 31) << named.name;
    const at::Tensor positions = store.positions();
    std::set<std::int64_t> kept;
    for (std::int64_t row = 0; row < 31; ++row) {
      kept.insert(positions[row].item<std::int64_t>());
    }
    EXPECT_EQ(kept.size(), 31U);
    for (std::int64_t position = 0; position < 3; ++position) {
      EXPECT_TRUE(kept.contains(position));
    }
    for (std::int64_t position = 118; position < 130; ++position) {
      EXPECT_TRUE(kept.contains(position)) << named.name << " " << position;
    }
  }
}

// One slot of all tokens but the kept ones: mean latent, mean position.
TEST(GroupPolicy, SlotsAreMeansOfLatents) {
  const testing::OneThread one;
  KvPlan plan = plans()[2].plan;
  const auto merged = testing::load(model_of(), plan, under("zeromerge:budget=32"));
  Sequence some = merged->new_sequence();
  merged->prefill({&some}, {part(text(), 0, 100)}, Engine::Rows::kLast);
  plan.compression.window_tokens = 0;
  plan.compression.sink_tokens = 0;
  const auto full = testing::load(model_of(), plan, under("streamingllm:window=500"));
  Sequence all = full->new_sequence();
  full->prefill({&all}, {part(text(), 0, 100)}, Engine::Rows::kLast);
  for (int group = 0; group < 2; ++group) {
    const LatentStore& store = some.cache().group(group);
    const at::Tensor latents = all.cache().group(group).merged().rows(at::kFloat);
    at::Tensor left = at::ones({100}, at::kBool);
    left.index_fill_(0, store.positions(), false);
    const at::Tensor members = left.nonzero().squeeze(1);
    ASSERT_EQ(members.size(0), 69);
    EXPECT_EQ(store.slots().count()[0], 69);
    EXPECT_NEAR(store.slots().value()[0], members.to(at::kFloat).mean().item<float>(), 1e-3);
    const at::Tensor slot =
        at::from_blob(const_cast<float*>(store.slots().key()), {latents.size(1)}, at::kFloat);
    EXPECT_TRUE(tensors_close(slot, latents.index_select(0, members).mean(0), 1e-4));
  }
}

TEST(GroupPolicy, PoliciesThatChooseOnceWorkOnARequestsBasis) {
  const testing::OneThread one;
  KvPlan plan = testing::principal_plan(model_of(), 2, LatentBasis::kRequest, true, 8, 8);
  plan.compression.sink_tokens = 2;
  plan.compression.window_tokens = 6;
  const at::Tensor full = two_turns(*testing::load(model_of(), plan));
  for (const char* policy : {"snapkv:budget=500", "h2o:budget=500"}) {
    EXPECT_TRUE(at::equal(two_turns(*testing::load(model_of(), plan, under(policy))), full));
  }
  for (const char* policy : {"snapkv:budget=44,window=5", "h2o:budget=44"}) {
    const auto engine = testing::load(model_of(), plan, under(policy));
    Sequence sequence = engine->new_sequence();
    two_turns(*engine, sequence);
    EXPECT_EQ(engine->pool().allocated_bytes(), formula(*engine, sequence));
  }
}

TEST(GroupPolicy, RefusesWhatItCannotDo) {
  const auto refusal = [](const KvPlan& plan, const std::string& policy) {
    return error_of([&] { testing::load(model_of(), plan, under(policy)); });
  };
  const KvPlan groups = plans().front().plan;
  EXPECT_THAT(refusal(groups, "h2o:compress-at=chunk"), HasSubstr("use compress-at=end"));
  EXPECT_THAT(refusal(groups, "streamingllm:pos=cache"), HasSubstr("use pos=true"));
  const KvPlan mean =
      testing::grouped_plan(model_of(), 2, 16, testing::small_policy(MergeRule::kMean));
  EXPECT_THAT(refusal(mean, "zeromerge"), HasSubstr("use residual=0"));
  EXPECT_EQ(refusal(mean, "zeromerge:residual=0"), "");
}

}  // namespace
}  // namespace kvc::group_policy_test

// What a prompt leaves in a cache with a budget, on any device, against the CPU's policies.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/gpu/kept_tokens.h"
#include "runtime/policies/token_policies.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

constexpr std::int64_t kHeads = 2, kChannels = 8, kTokens = 41;

class KeptTokensTest : public ::testing::TestWithParam<const char*> {};

TEST_P(KeptTokensTest, AreTheCpuPolicys) {
  const TokenPolicy policy = parse_token_policy(GetParam());
  const std::int64_t budget = layer_budget(policy, kTokens, 0, 1);
  const KvPlan plan = plain_plan(1, kHeads, kChannels);
  KeptLayer layer{.rows = {plan,
                           {.pool = std::make_shared<KvPool>(4), .dtype = at::kFloat},
                           kept_columns(policy)},
                  .choice = {{.budget = budget}}};
  const at::Tensor key = random_normal({kTokens, kHeads, kChannels}, 1),
                   value = random_normal({kTokens, kHeads, kChannels}, 2),
                   query = random_normal({scoring_queries(policy, kTokens), 4, kChannels}, 3);
  const PromptEnd end{.policy = policy, .rule = {}, .num_new = kTokens, .query = query};
  layer.rows.append(key, value, at::arange(kTokens, at::kLong));
  const at::Tensor scores = attention_scores(end, key, {});
  if (policy.has_scores()) {
    layer.rows.set_scores(scores);
  }
  layer.choice.scores = scores;
  finish_prompt(policy, {layer.choice, {{&layer.rows}}});

  HeadTokens all{key.transpose(0, 1), value.transpose(0, 1), {}, {}};
  if (policy.has_scores()) {
    all.scores = attention_scores(end, key, {}).t();
  }
  const LaidOutTokens kept = lay_out(policy, running_layout(policy, budget), all);
  const KeptContent expected = layer.rows.content();
  EXPECT_TRUE(
      at::equal(kept.rows.positions.t().to(at::kLong), expected.positions.expand({-1, kHeads})));
  EXPECT_TRUE(at::equal(kept.rows.key.transpose(0, 1), expected.key));
  EXPECT_TRUE(at::equal(kept.rows.value.transpose(0, 1), expected.value));
  if (policy.has_scores()) {
    EXPECT_TRUE(at::equal(kept.rows.scores.t(), expected.scores));
  }
  const ResidualSlots& slots = layer.rows.residual();
  ASSERT_EQ(kept.slots.key.defined(), !slots.empty());
  if (!slots.empty()) {
    const auto tensor = [&](const float* numbers, std::int64_t width) {
      return at::from_blob(const_cast<float*>(numbers), {slots.num_slots(), kHeads, width},
                           at::kFloat);
    };
    EXPECT_TRUE(
        tensors_close(kept.slots.key.transpose(0, 1), tensor(slots.key(), kChannels), 1e-5));
    EXPECT_TRUE(
        tensors_close(kept.slots.value.transpose(0, 1), tensor(slots.value(), kChannels), 1e-5));
    EXPECT_TRUE(at::equal(kept.slots.counts.t(), tensor(slots.count(), 1).squeeze(2)));
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, KeptTokensTest,
                         ::testing::Values("zeromerge:budget=12", "zeromerge:budget=40",
                                           "zeromerge:budget=16,residual=4,sink=2",
                                           "zeromerge:budget=20,residual=3,"
                                           "prefill-merge=contiguous",
                                           "zeromerge:budget=12,residual=0,lambda=0.5",
                                           "h2o:budget=0.3", "streamingllm:sink=3,window=10"));

}  // namespace
}  // namespace kvc

#include "core/token_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;

TEST(TokenPolicy, ReadsSettingsAndSaysThem) {
  const TokenPolicy policy = parse_token_policy("zeromerge:budget=10%,residual=2,alpha=1");
  EXPECT_EQ(policy.kind, TokenPolicyKind::kZeroMerge);
  EXPECT_DOUBLE_EQ(policy.budget.share, 0.1);
  EXPECT_EQ(policy.residual_slots, 2);
  EXPECT_EQ(policy.lambda, 0.98);
  EXPECT_EQ(to_string(policy),
            "zeromerge:budget=10%,ring=0.4,residual=2,sink=0,lambda=0.98,alpha=1,"
            "prefill-merge=argmax,decode=paper,compress-at=end");
  for (const char* text :
       {"full", "streamingllm:pos=cache", "h2o:budget=12", "snapkv", "pyramidkv",
        "think:share=0.6,window=8",
        "zeromerge:prefill-merge=contiguous,decode=released,compress-at=chunk"}) {
    const std::string said = to_string(parse_token_policy(text));
    EXPECT_EQ(to_string(parse_token_policy(said)), said);
  }
}

TEST(TokenPolicy, BudgetsAreTokensOrSharesOfThePrompt) {
  const auto budget = [](const char* text) {
    return layer_budget(parse_token_policy(text), 1000, 0, 4);
  };
  EXPECT_EQ(budget("h2o:budget=100"), 100);
  EXPECT_EQ(budget("h2o:budget=0.05"), 50);
  EXPECT_EQ(budget("h2o:budget=1.0"), 1000);
  EXPECT_EQ(budget("h2o:budget=0.001"), 3);  // two last tokens and one more
  EXPECT_EQ(budget("streamingllm:sink=3,window=7"), 10);
}

TEST(TokenPolicy, PyramidsHaveTheBudgetOnAverage) {
  const TokenPolicy policy = parse_token_policy("pyramidkv:budget=132,window=32,beta=5");
  std::int64_t sum = 0, before = 1000;
  for (int layer = 0; layer < 5; ++layer) {
    const std::int64_t of_layer = layer_budget(policy, 1, layer, 5);
    EXPECT_LT(of_layer, before);
    sum += before = of_layer;
  }
  EXPECT_EQ(sum, 5 * 132);
  EXPECT_EQ(layer_budget(policy, 1, 4, 5), 32 + 20);  // 100 / beta
}

TEST(TokenPolicy, RefusesWhatIsNotThere) {
  for (const auto& [text, words] :
       {std::pair("zero", "known: full, streamingllm, h2o, zeromerge, snapkv, pyramidkv, think"),
        {"full:budget=3", "it has none"},
        {"h2o:lambda=1", "expected key=value of budget, ring, sink, compress-at"},
        {"h2o:budget", "expected key=value"},
        {"snapkv:", "expected key=value"},
        {"h2o:budget=9,sink=1,budget=8", "'budget' is given twice"},
        {"h2o:budget=-3", "such as 0.1 or 10%"},
        {"h2o:budget=1.5", "such as 0.1 or 10%"},
        {"zeromerge:decode=old", "paper or released"},
        {"zeromerge:lambda=2", "a number from 0 to 1"},
        {"zeromerge:budget=3", "expected 4 or more"},
        {"zeromerge:budget=10,residual=6", "less than the 10"},
        {"zeromerge:budget=10,ring=1", "lower ring=1"},
        {"snapkv:budget=10", "expected 33 or more"}}) {
    try {
      parse_token_policy(text);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words)) << text;
    }
  }
}

// Two layers' worth of numbers that can be counted by hand.
TEST(TokenPolicy, BytesOfALayer) {
  const KvPlan plan = plain_plan(2, 3, 8);
  const TokenPolicy merging = parse_token_policy("zeromerge:budget=20,residual=2");
  EXPECT_EQ(kept_layer_bytes(plan, merging, {.rows = 10, .reserved_rows = 19, .residual_slots = 2},
                             KvDtype::kFloat16, 8),
            24 * (2 * 24 * 2 + 3 * 4 + 3 * 4) + 2 * 3 * (2 * 8 * 4 + 4));
  EXPECT_EQ(
      kept_layer_bytes(plan, parse_token_policy("streamingllm"), {.rows = 10}, KvDtype::kFloat32),
      10 * (2 * 24 * 4 + 4));
  const TokenPolicy h2o = parse_token_policy("h2o:budget=20");
  EXPECT_EQ(kept_layer_bytes(plan, h2o, {.rows = 10, .shares_heads = true}, KvDtype::kFloat16),
            10 * (2 * 24 * 2 + 4 + 4));
  EXPECT_EQ(kept_layer_bytes(plan, h2o, {.rows = 10, .follows = true}, KvDtype::kFloat16),
            10 * 2 * 24 * 2);
}

// Layers 2 and 5 join what they read: {0, 2, 3, 5}, {1, 4}.
TEST(TokenPolicy, LayersThatReadTheSameKeepTheSame) {
  KvPlan plan = plain_plan(6, 2, 8);
  for (const int layer : {2, 4, 5}) {
    plan.layers[static_cast<std::size_t>(layer)] = KvSource::kFused;
  }
  plan.fused = {{.layer = 2, .key_sources = {0}, .value_sources = {0}},
                {.layer = 4, .key_sources = {1}, .value_sources = {1}, .key_heads = {1, 0}},
                {.layer = 5, .key_sources = {3}, .value_sources = {0}}};
  const std::vector<SharingLayers> sets = sharing_layers(plan);
  ASSERT_EQ(sets.size(), 2U);
  EXPECT_EQ(sets[0].layers, (std::vector<int>{0, 2, 3, 5}));
  EXPECT_EQ(sets[0].storage, (std::vector<int>{0, 3}));
  EXPECT_FALSE(sets[0].shares_heads);
  EXPECT_EQ(sets[1].layers, (std::vector<int>{1, 4}));
  EXPECT_EQ(sets[1].storage, (std::vector<int>{1}));
  EXPECT_TRUE(sets[1].shares_heads);
  const TokenPolicy policy = parse_token_policy("pyramidkv:budget=100,window=20,beta=8");
  EXPECT_EQ(shared_budget(plan, policy, 1, {1, 4}),
            (layer_budget(policy, 1, 1, 6) + layer_budget(policy, 1, 4, 6)) / 2);
}

}  // namespace
}  // namespace kvc

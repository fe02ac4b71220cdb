#include "convert/coded/coded_plan.h"
#include "convert/coded/coded_settings.h"
#include "convert/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/coded/block_layout.h"
#include "convert/convert.h"
#include "convert/plan_table.h"
#include "core/kv_plan_bytes.h"
#include "model/config.h"
#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;

ModelConfig model(testing::SyntheticCheckpoint options = {}) {
  options.max_position_embeddings = 1024;
  return parse_model_config(testing::synthetic_config(options), "config.json");
}

ConvertSettings coded(double kept_ratio, const std::string& scope = "layer") {
  ConvertSettings settings;
  settings.method = "coded";
  settings.kept_ratio = kept_ratio;
  settings.own<CodedSettings>().scope = scope;
  settings.window_tokens = 32;
  resolve(settings);
  return settings;
}

TEST(CodedPlan, SpendsTheBudgetAndNoMore) {
  const ModelConfig config = model({.dtype = "bfloat16"});
  for (const double kept : {0.5, 0.25, 0.1}) {
    for (const char* scope : {"head", "layer", "group"}) {
      for (const CodeWidths widths :
           {CodeWidths::kAll, CodeWidths::kPowers, CodeWidths::kNibbles}) {
        ConvertSettings settings = coded(kept, scope);
        settings.own<CodedSettings>().widths = widths;
        const KvPlan plan = make_plan(config, settings, false);
        const double reached = coded_kept_ratio(config, plan, 1024);
        EXPECT_LE(reached, kept) << scope;
        EXPECT_GT(reached, kept - 0.01) << scope << ' ' << to_string(widths);
      }
    }
  }
}

TEST(CodedPlan, MoreThanEightBitsAreNotSpent) {
  const ModelConfig config = model({.dtype = "bfloat16"});
  const KvPlan plan = make_plan(config, coded(1), false);
  for (const CodedBlock& block : plan.coded) {
    EXPECT_EQ(block.coefficients[8], num_channels(block, config));
  }
  EXPECT_LT(coded_kept_ratio(config, plan, 1024), 0.54);
}

TEST(CodedPlan, GainsAreCounted) {
  const ModelConfig config = model();
  ConvertSettings settings = coded(0.25, "head");
  const KvPlan without = make_plan(config, settings, false);
  settings.own<CodedSettings>().gain = GainChoice::kOn;
  const KvPlan with = make_plan(config, settings, false);
  EXPECT_EQ(coded_bit_budget(config, settings, without) - coded_bit_budget(config, settings, with),
            8 * static_cast<std::int64_t>(with.coded.size()));
  EXPECT_LE(coded_kept_ratio(config, with, 1024), 0.25);
}

TEST(CodedPlan, RefusesWhatCannotBeReachedWithWaysThatWork) {
  const ModelConfig config = model();
  ConvertSettings settings = coded(0.05);
  const std::string message = error_of([&] { make_plan(config, settings, false); });
  EXPECT_THAT(message, HasSubstr("--kept-ratio 0.05 cannot be reached"));
  EXPECT_THAT(message, HasSubstr("64 stay exact"));
  EXPECT_THAT(message, HasSubstr("--window"));
  settings.window_tokens = 0;
  EXPECT_EQ(error_of([&] { make_plan(config, settings, false); }), "") << message;
  settings.kept_ratio = 0.03;  // less than the 28 tokens behind the last whole block keep
  EXPECT_THAT(error_of([&] { make_plan(config, settings, false); }), HasSubstr("--sink 0"));
  settings.sink_tokens = 0;
  EXPECT_EQ(error_of([&] { make_plan(config, settings, false); }), "");
  settings = coded(0.05);
  EXPECT_EQ(error_of([&] { make_plan(config, settings, true); }), "");
  settings.context = 20;  // nothing is ever coded
  EXPECT_THAT(error_of([&] { make_plan(config, settings, false); }), HasSubstr("cannot be"));
}

TEST(CodedPlan, PromptsAreReadAsAsked) {
  const ModelConfig config = model({.dtype = "bfloat16"});
  ConvertSettings settings = coded(0.25, "head");
  EXPECT_FALSE(codes_prompts(make_plan(config, settings, false)));
  settings.prefill = PrefillMode::kCoded;
  EXPECT_TRUE(codes_prompts(make_plan(config, settings, false)));
  EXPECT_FALSE(codes_first_token(make_plan(config, settings, false)));
  settings.sink_tokens = 0;
  EXPECT_TRUE(codes_first_token(make_plan(config, settings, false)));
}

TEST(CodedPlan, ScopesCoverTheModel) {
  const ModelConfig config = model({.num_layers = 6});
  const auto blocks = [&](const std::string& scope) {
    const ConvertSettings settings = coded(0.25, scope);
    return block_layout(config, settings, choose_scopes(config, settings));
  };
  EXPECT_EQ(blocks("head").size(), 12u);
  EXPECT_EQ(blocks("layer").size(), 6u);
  const std::vector<CodedBlock> groups = blocks("group");  // of four, and what is left
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[1].num_layers, 2);
  const std::vector<CodedBlock> mixed = blocks("head:0,layer:1-2,group:3-5");
  ASSERT_EQ(mixed.size(), 6u);  // 2 heads, 2 layers, layer 3 of the first four, layers 4-5
  EXPECT_EQ(mixed[1].head, 1);
  EXPECT_EQ(mixed[4].num_layers, 1);
  EXPECT_EQ(mixed[5].num_layers, 2);
  EXPECT_NO_THROW(make_plan(config, coded(0.25, "head:0,layer:1-2,group:3-5"), false));
}

TEST(CodedPlan, ScopesThatDoNotAreRefused) {
  const ModelConfig config = model({.num_layers = 6});
  const auto refusal = [&](const std::string& scope) {
    return error_of([&] { choose_scopes(config, coded(0.25, scope)); });
  };
  EXPECT_THAT(refusal("model"), HasSubstr("head, layer, group"));
  EXPECT_THAT(refusal("head:0-4"), HasSubstr("layer 5 has none"));
  EXPECT_THAT(refusal("head:0-4,layer:4-5"), HasSubstr("layer 4 has two"));
  EXPECT_THAT(refusal("head:0-6"), HasSubstr("expected 0 to 5"));
  EXPECT_THAT(refusal("head:5-0"), HasSubstr("not a range"));
}

TEST(CodedPlan, TheAutomaticScopeSaysWhy) {
  const ModelConfig config = model();
  const auto chosen = [&](double kept, Preference prefer) {
    ConvertSettings settings = coded(kept, "auto");
    settings.own<CodedSettings>().prefer = prefer;
    const LayerScopes scopes = choose_scopes(config, settings);
    EXPECT_FALSE(scopes.reason.empty());
    return scopes.scopes.front();
  };
  EXPECT_EQ(chosen(0.25, Preference::kBalance), CodedScope::kLayer);
  EXPECT_EQ(chosen(0.1, Preference::kBalance), CodedScope::kGroup);
  EXPECT_EQ(chosen(0.1, Preference::kSpeed), CodedScope::kHead);
  EXPECT_EQ(chosen(0.5, Preference::kCapacity), CodedScope::kGroup);
}

// A head's channels lie apart in the layer's y: its keys, then its values.
TEST(CodedPlan, ChannelsOfBlocks) {
  const ModelConfig config = model({.num_kv_heads = 2, .head_dim = 2});
  CodedBlock block;
  block.first_layer = 1;
  block.head = 1;
  EXPECT_EQ(channels_in_run(block, {0, 2}, config), (std::vector<std::int64_t>{10, 11, 14, 15}));
  block.head = -1;
  EXPECT_EQ(channels_in_run(block, {1, 1}, config).size(), 8u);
}

TEST(CodedPlan, TheTableAddsUp) {
  const ModelConfig config = model();
  const PlanTable table = plan_table(config, coded(0.25, "head:0-1,group:2-3"), false);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.exact_tokens, 1024 - tokens_in_blocks(table.plan, 1024));
  const double share = static_cast<double>(table.exact_tokens) / 1024;
  EXPECT_NEAR(table.kept_at_target, share + (1 - share) * table.kept_coded, 1e-12);
  EXPECT_THAT(to_text(table), HasSubstr("group"));
  EXPECT_EQ(to_json(table)["rows"].size(), 2u);
}

TEST(CodedPlan, ItsNeedsFollowItsMetric) {
  const ModelConfig config = model();
  ConvertSettings settings = coded(0.25, "group");
  EXPECT_EQ(statistics_needs(config, settings).joint_layers, 4);
  EXPECT_TRUE(statistics_needs(config, settings).gradient_metric);
  EXPECT_EQ(statistics_needs(config, settings).least_tokens, 4 * 128);
  EXPECT_FALSE(needs_calibration(settings));
  EXPECT_FALSE(needs_fisher(settings));
  settings.cache_metric = CacheMetric::kAttention;
  EXPECT_TRUE(statistics_needs(config, settings).attention_metric);
  EXPECT_FALSE(statistics_needs(config, settings).gradient_metric);
  settings.method = "commonkv";
  EXPECT_EQ(statistics_needs(config, settings).joint_layers, 0);
}

}  // namespace
}  // namespace kvc

#include <gmock/gmock.h>

#include "convert/convert.h"
#include "convert/latent/latent_plan.h"
#include "convert/latent/latent_settings.h"
#include "convert/plan.h"
#include "convert/plan_table.h"
#include "convert/principal/principal_plan.h"
#include "core/error.h"
#include "tests/testing/error_of.h"

namespace kvc::plan_test {
namespace {

using ::testing::HasSubstr;

// The sizes of a published model; everything else as a llama.
ModelConfig model(int num_layers, std::int64_t hidden_size, std::int64_t num_heads,
                  std::int64_t num_kv_heads) {
  ModelConfig config;
  config.arch = &find_arch("llama", "test");
  config.num_layers = num_layers;
  config.hidden_size = hidden_size;
  config.intermediate_size = 4 * hidden_size;
  config.vocab_size = 1000;
  config.num_heads = num_heads;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = hidden_size / num_heads;
  config.max_position_embeddings = 8192;
  config.layers.resize(static_cast<std::size_t>(num_layers));
  return config;
}

ModelConfig llama_8b() { return model(32, 4096, 32, 8); }
ModelConfig llama2_7b() { return model(32, 4096, 32, 32); }
ModelConfig llama_70b() { return model(80, 8192, 64, 8); }
ModelConfig qwen_7b() { return model(28, 3584, 28, 4); }

// The published setting: rank 0.7, groups of 4, no token exempt, no positions to store.
ConvertSettings published(double kept_ratio) {
  ConvertSettings settings;
  settings.kept_ratio = kept_ratio;
  settings.own<RankSettings>().multiple = 1;
  settings.sink_tokens = settings.window_tokens = 0;
  settings.own<LatentSettings>().granularity = Granularity::kGroup;
  settings.tokens_in_flight = 65536;
  return settings;
}

double share(const ModelConfig& config, double kept_ratio) {
  return plan_table(config, published(kept_ratio), false).unmerged_share;
}

TEST(ClosedForm, MatchesThePublishedSizes) {
  EXPECT_NEAR(share(llama_8b(), 0.7), 0.5385, 1e-3);
  EXPECT_NEAR(share(llama_8b(), 0.5), 0.2308, 1e-3);
  EXPECT_NEAR(share(qwen_7b(), 0.7), 0.226, 1e-3);
  EXPECT_NEAR(share(llama_70b(), 0.7), 0, 1e-3);
  ConvertSettings settings = published(0.4);
  settings.own<LatentSettings>().rank = 0.6;
  EXPECT_NEAR(plan_table(llama_8b(), settings, false).unmerged_share, 0.143, 1e-3);
}

TEST(ClosedForm, RefusesWhatCannotBeReached) {
  const std::string message = error_of([] { make_plan(qwen_7b(), published(0.5), false); });
  EXPECT_THAT(message, HasSubstr("--kept-ratio 0.5"));
  EXPECT_THAT(message, HasSubstr("0.6123"));  // smallest reachable: 2508 / 4096
  EXPECT_THAT(message, HasSubstr("--kept-ratio 0.613"));
  EXPECT_THAT(message, HasSubstr("--rank 0.57"));  // 0.57 * 3584 / 4096 < 0.5
  EXPECT_THAT(message, HasSubstr("--group 6"));    // a last group of 3 would keep too much with 5
  EXPECT_NO_THROW(make_plan(qwen_7b(), published(0.5), true));
}

TEST(ClosedForm, EverySuggestionWorks) {
  ConvertSettings settings = published(0.5);
  settings.own<LatentSettings>().rank = 0.57;
  EXPECT_NO_THROW(make_plan(qwen_7b(), settings, false));
  settings.own<LatentSettings>().rank = 0.58;
  EXPECT_THROW(make_plan(qwen_7b(), settings, false), Error);
  settings = published(0.613);
  EXPECT_NO_THROW(make_plan(qwen_7b(), settings, false));
}

TEST(ClosedForm, ShareIsLinearAndClamped) {
  const KeptRange range{.lowest = 0.2, .highest = 0.6};
  EXPECT_DOUBLE_EQ(unmerged_share(0.4, range), 0.5);
  EXPECT_DOUBLE_EQ(unmerged_share(0.9, range), 1);
  EXPECT_DOUBLE_EQ(unmerged_share(0.1, range), 0);
}

TEST(Plan, SmallLatentsAreTheUnmergedForm) {
  const KvPlan plan = make_plan(llama2_7b(), published(0.5), false);
  EXPECT_EQ(plan.compression.unmerged, UnmergedForm::kLatent);  // 2867 < 2 * 4096
  EXPECT_NEAR(kept_range(plan, 8192, KvDtype::kBFloat16).highest, 0.35, 1e-3);
  EXPECT_EQ(make_plan(llama_8b(), published(0.5), false).compression.unmerged,
            UnmergedForm::kPlain);
}

TEST(Plan, AnUnmergedLatentNeverExceedsPlainKv) {
  ConvertSettings settings = published(0.5);
  settings.own<LatentSettings>().unmerged = UnmergedChoice::kLatent;
  EXPECT_THAT(error_of([&] { make_plan(llama_8b(), settings, false); }), HasSubstr("1.40x"));
}

TEST(Plan, RefusesAGroupThatSavesNothing) {
  ConvertSettings settings;
  settings.layers_per_group = 1;
  const std::string message = error_of([&] { make_plan(llama_8b(), settings, false); });
  EXPECT_THAT(message, HasSubstr("4100 bytes"));  // rank 2048, its cap, and a position
  EXPECT_THAT(message, HasSubstr("only 4096"));
  EXPECT_THAT(message, HasSubstr("--group 3"));
  EXPECT_THAT(message, HasSubstr("--rank 0.24"));
}

TEST(Plan, TheTableSaysWhatMergingDoes) {
  ConvertSettings settings;
  const PlanTable table = plan_table(llama_8b(), settings, false);
  ASSERT_GE(table.notes.size(), 2u);
  EXPECT_THAT(table.notes[0], HasSubstr("1.40x"));
  EXPECT_THAT(table.notes[1], HasSubstr("0.35x"));
  EXPECT_EQ(table.rows.size(), 8u);
  EXPECT_NEAR(table.kept_at_target, 0.5, 1e-9);
  // P [2848, 8192] and the refitted B with 8 bits, or 16 for half of the coefficients, and their scales, eight times.
  EXPECT_EQ(table.weights_growth_bytes, 8 * 2 * 2848ll * (8192 * 3 / 2 + 4));
  settings.own<LatentSettings>().merge = MergeRule::kMean;  // A [2848, 4096] and B too, but no P
  EXPECT_EQ(plan_table(llama_8b(), settings, false).weights_growth_bytes,
            8 * 2848ll * ((4096 + 2 * 8192) * 3 / 2 + 3 * 4));
  EXPECT_THAT(to_text(table), HasSubstr("28-31"));
  EXPECT_EQ(to_json(table)["groups"].size(), 8u);
}

TEST(Plan, TheLastGroupMayBeShorter) {
  const std::vector<LatentGroup> groups = group_layers(model(10, 64, 8, 8), 4);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[2].first_layer, 8);
  EXPECT_EQ(groups[2].num_layers, 2);
}

TEST(Plan, AShortGroupThatSavesNothingStaysPlain) {
  const KvPlan plan = make_plan(model(33, 4096, 32, 8), published(0.5), false);
  EXPECT_EQ(plan.groups.size(), 8u);
  EXPECT_EQ(plan.layers[32], KvSource::kPlain);
  const PlanTable table = plan_table(model(33, 4096, 32, 8), published(0.5), false);
  EXPECT_EQ(table.rows.back().group, -1);
  EXPECT_EQ(table.rows.back().kept_at_target, 1);
}

TEST(Plan, TheRankIsCappedByTheGroup) {
  ConvertSettings settings = published(0.9);
  settings.own<LatentSettings>().rank = 1;
  settings.layers_per_group = 2;
  ModelConfig config = model(2, 512, 8, 1);  // 2 * 2 * 64 = 256 rows
  const KvPlan plan = make_plan(config, settings, true);
  EXPECT_EQ(plan.groups.at(0).rank, 256);
}

TEST(Plan, LayersOfDifferentKindNeverShareAGroup) {
  ModelConfig config = model(6, 64, 8, 8);
  config.layers[3].window = config.layers[4].window = config.layers[5].window = 32;
  const std::vector<LatentGroup> groups = group_layers(config, 4);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].num_layers, 3);
  EXPECT_EQ(groups[1].first_layer, 3);
}

TEST(Plan, LayersWithAndWithoutRopeNeverShareAGroup) {
  ModelConfig config = model(6, 64, 8, 8);
  config.ropes = {{.rotary_dim = 8}, {.theta = 100, .rotary_dim = 8}};
  config.layers[2].rope = -1;
  config.layers[5].rope = 1;
  std::vector<int> first_layers;
  for (const LatentGroup& group : group_layers(config, 4)) {
    first_layers.push_back(group.first_layer);
  }
  EXPECT_EQ(first_layers, (std::vector<int>{0, 2, 3, 5}));
}

TEST(Plan, WithoutMergingTheRankAloneDecides) {
  ConvertSettings settings = published(0.9);
  settings.own<LatentSettings>().merge = MergeRule::kNone;
  resolve(settings);
  const KvPlan plan = make_plan(llama2_7b(), settings, false);
  EXPECT_EQ(plan.compression.unmerged, UnmergedForm::kLatent);
  EXPECT_NEAR(plan.compression.target_kept_ratio, 0.35, 1e-3);
  EXPECT_THROW(make_plan(llama_8b(), settings, false), Error);
  EXPECT_EQ(make_plan(llama_8b(), settings, true).groups.size(), 8u);
}

TEST(Plan, FisherScoresMoveRanks) {
  ConvertSettings settings = published(0.7);
  settings.own<RankSettings>().allocation = RankAllocation::kFisher;
  settings.own<RankSettings>().multiple = 32;
  std::vector<double> scores(64, 1.0);
  for (std::size_t i = 0; i < 8; ++i) {
    scores[i] = 1.5;  // keys and values of group 0
  }
  const KvPlan plan = make_plan(llama_8b(), settings, false, &scores);
  EXPECT_GT(plan.groups[0].rank, plan.groups[1].rank);
  EXPECT_EQ(plan.groups[1].rank % 32, 0);
}

TEST(PaluPlan, KeepsTheSharesOfItsRanks) {
  ConvertSettings settings;
  settings.method = "palu";
  settings.own<LatentSettings>().rank = 0.5;
  resolve(settings);
  const KvPlan plan = make_plan(llama_8b(), settings, false);
  ASSERT_EQ(plan.groups.size(), 32u);
  EXPECT_TRUE(plan.groups[0].split_kv);
  EXPECT_EQ(plan.groups[0].key_rank, 512);
  EXPECT_NEAR(plan.compression.target_kept_ratio, 0.5, 1e-12);
}

TEST(PaluPlan, HeadGroupsShareTheRank) {
  ConvertSettings settings;
  settings.method = "palu";
  settings.own<LatentSettings>().rank = 0.7;
  settings.own<LatentSettings>().heads_per_group = 4;
  resolve(settings);
  EXPECT_EQ(make_plan(llama_8b(), settings, false).groups[0].key_rank, 2 * 352);
  settings.own<LatentSettings>().heads_per_group = 3;
  EXPECT_THAT(error_of([&] { make_plan(llama_8b(), settings, false); }),
              HasSubstr("--head-group 3"));
}

TEST(PaluPlan, RefusesFullRank) {
  ConvertSettings settings;
  settings.method = "palu";
  settings.own<LatentSettings>().rank = 1;
  resolve(settings);
  EXPECT_THAT(error_of([&] { make_plan(llama_8b(), settings, false); }), HasSubstr("2048"));
  EXPECT_NO_THROW(make_plan(llama_8b(), settings, true));
}

// Tiles of tensor cores have 16 or 32 numbers.
TEST(Plan, RanksAreMultiplesOfWhatIsAskedFor) {
  for (const std::int64_t multiple : {16, 32}) {
    for (const char* method : {"commonkv", "palu", "xkv", "xkv-static", "pca"}) {
      for (const bool given : {false, true}) {
        ConvertSettings settings;
        settings.method = method;
        settings.own<RankSettings>().multiple = multiple;
        settings.kept_ratio = settings.own<LatentSettings>().rank = 0.53;
        settings.own<PrincipalSettings>().key_rank = settings.own<PrincipalSettings>().value_rank =
            given ? 101 : 0;
        resolve(settings);
        const KvPlan plan = make_plan(llama_8b(), settings, true);
        ASSERT_FALSE(plan.groups.empty());
        for (const LatentGroup& group : plan.groups) {
          for (const std::int64_t rank : {group.rank, group.key_rank, group.value_rank}) {
            EXPECT_EQ(rank % multiple, 0) << method << ": " << rank;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvc::plan_test

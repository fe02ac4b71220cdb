// Models whose cache holds latents of their own: no method applies, and the plan says what they cost.
#include <gmock/gmock.h>

#include "convert/plan.h"
#include "convert/plan_table.h"
#include "convert/principal/principal_plan.h"
#include "core/error.h"
#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"

namespace kvc::own_cache_test {
namespace {

using ::testing::HasSubstr;

// A latent of 16 and a rotary key of 4 per token and layer, in bfloat16.
ModelConfig latent_attention() {
  return parse_model_config(
      testing::synthetic_config(
          {.model_type = "deepseek_v2", .num_layers = 3, .dtype = "bfloat16"}),
      "config.json");
}

TEST(OwnCache, IsWhatThePlanShows) {
  const PlanTable table = plan_table(latent_attention(), {}, false);
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0].num_layers, 3);
  EXPECT_EQ(table.rows[0].plain_bytes, 3 * (16 + 4) * 2);
  EXPECT_EQ(table.kept_at_target, 1);
  EXPECT_EQ(table.weights_growth_bytes, 0);
  const std::string text = to_text(table);
  EXPECT_THAT(text, HasSubstr("takes 120 bytes per token"));
  EXPECT_THAT(text, HasSubstr("commonkv does not apply: deepseek_v2 models already cache"));
}

// Four layers' latents of 16 as one of 20 numbers, beside rotary keys of 4.
TEST(OwnCache, SharesPrincipalDirections) {
  const ModelConfig config = parse_model_config(
      testing::synthetic_config({.model_type = "deepseek_v2", .dtype = "bfloat16"}), "config.json");
  for (const char* method : {"xkv", "xkv-static"}) {
    ConvertSettings settings;
    settings.method = method;
    settings.own<PrincipalSettings>().key_rank = 3;
    settings.own<PrincipalSettings>().value_rank = 2;
    settings.sink_tokens = 0;
    settings.window_tokens = 0;
    settings.context = 4096;
    resolve(settings);
    const PlanTable table = plan_table(config, settings, false);
    ASSERT_EQ(table.plan.groups.size(), 1u);
    EXPECT_EQ(table.plan.groups[0].rank, 20);
    EXPECT_FALSE(table.plan.groups[0].split_kv);
    EXPECT_EQ(table.rows[0].merged_bytes, (20 + 4 * 4) * 2);
    EXPECT_EQ(table.rows[0].plain_bytes, 4 * (16 + 4) * 2);
    const bool is_request = table.plan.request.has_value();
    const double basis = is_request ? 4 * 16 * 20 : 0;
    EXPECT_NEAR(table.kept_at_target, (20 + 16 + basis / 4096) / 80, 1e-9);
    // Encoder and decoder of 20 directions of 64 in 8 bits; their scales and the mean in float32.
    EXPECT_EQ(table.weights_growth_bytes, is_request ? 0 : 2 * 20 * (64 + 4) + 64 * 4);
    EXPECT_THAT(to_text(table), HasSubstr("20 directions of 64 for the latents of 4 layers"));
    settings.own<PrincipalSettings>().key_rank = settings.own<PrincipalSettings>().value_rank = 0;
    settings.kept_ratio = 0.6;
    EXPECT_LE(make_plan(config, settings, false).compression.target_kept_ratio, 0.6);
    settings.kept_ratio = 0.1;  // rotary keys alone are a fifth
    EXPECT_THROW(make_plan(config, settings, false), Error);
  }
}

TEST(OwnCache, HasNoMetricOfHeads) {
  ConvertSettings settings;
  settings.method = "xkv-static";
  settings.cache_metric = CacheMetric::kFisher;
  resolve(settings);
  EXPECT_THAT(error_of([&] { make_plan(latent_attention(), settings, /*force=*/true); }),
              HasSubstr("--metric fisher"));
}

TEST(OwnCache, IsNotConverted) {
  for (const char* method : {"commonkv", "palu"}) {
    ConvertSettings settings;
    settings.method = method;
    EXPECT_THAT(error_of([&] { make_plan(latent_attention(), settings, /*force=*/true); }),
                HasSubstr("no key and value projections"))
        << method;
  }
}

}  // namespace
}  // namespace kvc::own_cache_test

// Models whose cache holds latents of their own: no method applies, and the plan says what they cost.
#include <gmock/gmock.h>

#include "convert/plan_table.h"
#include "core/error.h"
#include "tests/testing/synthetic_checkpoint.h"

namespace kvc {
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

TEST(OwnCache, IsNotConverted) {
  for (const char* method : {"commonkv", "palu"}) {
    ConvertSettings settings;
    settings.method = method;
    try {
      make_plan(latent_attention(), settings, /*force=*/true);
      FAIL() << method;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("no key and value projections"));
    }
  }
}

}  // namespace
}  // namespace kvc

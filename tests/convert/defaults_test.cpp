#include "convert/defaults.h"
#include "convert/coded/coded_settings.h"

#include <gmock/gmock.h>

#include "convert/coded/block_layout.h"
#include "convert/plan.h"
#include "core/error.h"
#include "tests/testing/error_of.h"

namespace kvc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr OpenSettings kAllOpen = {true, true, true, true, true};

ModelConfig model(std::int64_t context, int num_layers = 8, std::int64_t hidden_size = 128,
                  std::int64_t num_heads = 8, std::int64_t num_kv_heads = 4) {
  ModelConfig config;
  config.arch = &find_arch("llama", "test");
  config.num_layers = num_layers;
  config.hidden_size = hidden_size;
  config.intermediate_size = 2 * hidden_size;
  config.vocab_size = 1000;
  config.num_heads = num_heads;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = hidden_size / num_heads;
  config.max_position_embeddings = context;
  config.layers.resize(static_cast<std::size_t>(num_layers));
  return config;
}

ModelConfig llama_8b() { return model(131072, 32, 4096, 32, 8); }

ConvertSettings settings_of(const char* method) {
  ConvertSettings settings;
  settings.method = method;
  resolve(settings);
  return settings;
}

// What is planned after the choice keeps this much.
double planned(const ModelConfig& config, const ConvertSettings& settings) {
  const KvPlan plan = make_plan(config, settings, /*force=*/false);
  return planned_kept_ratio(plan, plan_context(config, settings), planned_dtype(config, settings));
}

class DefaultsOfMethod : public ::testing::TestWithParam<const char*> {};

TEST_P(DefaultsOfMethod, AreNeverAReasonToRefuse) {
  for (const std::int64_t context : {128, 256, 512, 1024, 8192, 131072}) {
    const ModelConfig config = model(context);
    ConvertSettings settings = settings_of(GetParam());
    choose_defaults(config, kAllOpen, settings);
    EXPECT_LE(planned(config, settings), settings.kept_ratio + 1e-6) << context;
    EXPECT_EQ(settings.kept_ratio, 0.5) << context;
  }
}

TEST_P(DefaultsOfMethod, LeaveRoomForAGivenRatio) {
  OpenSettings open = kAllOpen;
  open.kept_ratio = false;
  for (const std::int64_t context : {128, 256, 512}) {
    const ModelConfig config = model(context);
    ConvertSettings settings = settings_of(GetParam());
    settings.kept_ratio = 0.3;
    choose_defaults(config, open, settings);
    EXPECT_LE(planned(config, settings), 0.3 + 1e-6) << context;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, DefaultsOfMethod,
                         ::testing::Values("coded", "commonkv", "pca", "xkv-static"));

TEST(Defaults, TakeTheNearestRatioWhereRankAndWindowAreGiven) {
  ConvertSettings settings = settings_of("commonkv");
  settings.sink_tokens = 4;
  settings.window_tokens = 128;
  const OpenSettings open = {.kept_ratio = true};
  const auto notes = choose_defaults(model(256), open, settings);
  EXPECT_GT(settings.kept_ratio, 0.5);
  EXPECT_LE(planned(model(256), settings), settings.kept_ratio);
  ConvertSettings less = settings;
  less.kept_ratio -= 0.002;
  EXPECT_THROW(make_plan(model(256), less, false), Error);
  EXPECT_THAT(
      notes,
      ElementsAre(HasSubstr("in a cache of 256 tokens, 132 stay exact (--sink 4, --window 128)")));
}

TEST(Defaults, ChangeNothingThatWasGiven) {
  for (const char* method : {"coded", "commonkv", "xkv-static"}) {
    ConvertSettings settings = settings_of(method);
    settings.kept_ratio = 0.2;
    settings.window_tokens = 77;
    settings.sink_tokens = 3;
    settings.block_tokens = 5;
    const Json before = to_json(settings);
    EXPECT_THAT(choose_defaults(model(128), OpenSettings{}, settings), IsEmpty());
    EXPECT_EQ(to_json(settings), before) << method;
  }
}

TEST(Defaults, AnExplicitRatioThatIsOutOfReachIsRefused) {
  ConvertSettings settings = settings_of("commonkv");
  settings.kept_ratio = 0.05;
  OpenSettings open = kAllOpen;
  open.kept_ratio = open.rank = false;
  choose_defaults(model(256), open, settings);
  EXPECT_EQ(settings.kept_ratio, 0.05);
  EXPECT_THROW(make_plan(model(256), settings, false), Error);
}

TEST(Defaults, ExactTokensShrinkWithTheContext) {
  std::int64_t before = 0;
  for (const std::int64_t context : {128, 512, 2048, 8192}) {
    ConvertSettings settings = settings_of("commonkv");
    choose_defaults(model(context), kAllOpen, settings);
    EXPECT_LE(8 * settings.window_tokens, context);
    EXPECT_GE(settings.window_tokens, before);
    before = settings.window_tokens;
  }
}

// Scope auto: factors of whole layers weigh more than they save on few tokens.
TEST(ScopeChoice, FollowsCacheAndFactorsAtTheTokensInFlight) {
  ConvertSettings settings = settings_of("coded");
  settings.kept_ratio = 0.25;
  const LayerScopes few = choose_scopes(llama_8b(), settings);
  EXPECT_EQ(few.scopes.front(), CodedScope::kHead);
  EXPECT_THAT(few.reason, HasSubstr("8192 tokens in flight"));
  EXPECT_LE(estimated_factor_bytes(make_plan(llama_8b(), settings, false), llama_8b(), settings),
            std::int64_t{128} << 20);
  settings.tokens_in_flight = 1 << 17;
  EXPECT_EQ(choose_scopes(llama_8b(), settings).scopes.front(), CodedScope::kLayer);
  settings.own<CodedSettings>().prefer = Preference::kSpeed;
  EXPECT_EQ(choose_scopes(llama_8b(), settings).scopes.front(), CodedScope::kHead);
}

TEST(PlanPayback, RefusesWhatCannotPayWithinFourTimesTheTokensInFlight) {
  ConvertSettings settings = settings_of("coded");
  settings.kept_ratio = 0.25;
  settings.own<CodedSettings>().scope = "group";
  settings.tokens_in_flight = 1024;
  EXPECT_THAT(
      error_of([&] { make_plan(llama_8b(), settings, false); }),
      ::testing::AllOf(HasSubstr("more than 4 times the 1024 tokens"), HasSubstr("--scope head")));
  EXPECT_NO_THROW(make_plan(llama_8b(), settings, true));
  const Payback gain =
      estimated_payback(make_plan(llama_8b(), settings, true), llama_8b(), settings);
  settings.tokens_in_flight = gain.tokens / 4 + 1;
  EXPECT_NO_THROW(make_plan(llama_8b(), settings, false));
}

}  // namespace
}  // namespace kvc

#include <gmock/gmock.h>

#include <limits>

#include "convert/convert.h"
#include "convert/latent/latent_settings.h"
#include "core/error.h"

namespace kvc::settings_test {
namespace {

using ::testing::HasSubstr;

// The message with which `change` applied to the defaults is refused as a usage error.
template <typename Change>
std::string refusal(const Change& change) {
  ConvertSettings settings;
  try {
    change(settings);
    resolve(settings);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Settings, DefaultsAreAccepted) {
  ConvertSettings settings;
  EXPECT_NO_THROW(resolve(settings));
}

TEST(Settings, NamesTheFlagThatIsOutOfRange) {
  using S = ConvertSettings;
  for (const double rank : {0.0, 2.0, -0.5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(refusal([&](S& s) { s.own<LatentSettings>().rank = rank; }), HasSubstr("--rank"))
        << rank;
  }
  EXPECT_THAT(refusal([](S& s) { s.kept_ratio = 1.5; }), HasSubstr("--kept-ratio"));
  EXPECT_THAT(refusal([](S& s) { s.layers_per_group = 0; }), HasSubstr("--group"));
  EXPECT_THAT(refusal([](S& s) { s.own<RankSettings>().multiple = -1; }),
              HasSubstr("--rank-multiple"));
  EXPECT_THAT(refusal([](S& s) { s.sink_tokens = -1; }), HasSubstr("--sink"));
  EXPECT_THAT(refusal([](S& s) { s.window_tokens = -1; }), HasSubstr("--window"));
  EXPECT_THAT(refusal([](S& s) { s.block_tokens = 0; }), HasSubstr("--block"));
  EXPECT_THAT(refusal([](S& s) { s.context = -1; }), HasSubstr("--context"));
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refusal([](S& s) { s.sink_tokens = kHuge; }), HasSubstr("--sink"));
  EXPECT_THAT(refusal([](S& s) { s.window_tokens = kHuge; }), HasSubstr("--window"));
  EXPECT_THAT(refusal([](S& s) { s.block_tokens = kHuge; }), HasSubstr("--block"));
  EXPECT_THAT(refusal([](S& s) { s.context = kHuge; }), HasSubstr("--context"));
}

TEST(Settings, UnknownNamesListTheKnown) {
  EXPECT_THAT(refusal([](ConvertSettings& s) { s.method = "kvx"; }), HasSubstr("commonkv, palu"));
  EXPECT_THAT(refusal([](ConvertSettings& s) { apply_preset(s, "best"); }), HasSubstr("paper"));
}

TEST(Settings, ThePaperPresetFollowsCommonKv) {
  ConvertSettings settings;
  apply_preset(settings, "paper");
  resolve(settings);
  EXPECT_EQ(settings.own<LatentSettings>().factor, Factor::kPlain);
  EXPECT_EQ(settings.own<LatentSettings>().merge, MergeRule::kFisher);
  EXPECT_EQ(settings.own<LatentSettings>().granularity, Granularity::kGroup);
  EXPECT_EQ(settings.prefill, PrefillMode::kTruncated);
  EXPECT_EQ(settings.own<RankSettings>().multiple, 1);
  EXPECT_FALSE(settings.own<LatentSettings>().refit);
  EXPECT_FALSE(settings.own<LatentSettings>().ls_fisher_weights);
  EXPECT_TRUE(needs_fisher(settings));
  EXPECT_FALSE(needs_calibration(settings));
}

TEST(Settings, WhatIsSetAfterAPresetWins) {
  ConvertSettings settings;
  apply_preset(settings, "paper");
  settings.own<LatentSettings>().merge = MergeRule::kMean;
  settings.own<LatentSettings>().refit = true;
  resolve(settings);
  EXPECT_EQ(settings.preset, "paper");
  EXPECT_EQ(settings.own<LatentSettings>().merge, MergeRule::kMean);
  EXPECT_TRUE(settings.own<LatentSettings>().refit);
  EXPECT_EQ(settings.own<LatentSettings>().factor, Factor::kPlain);
}

TEST(Settings, PaluLeavesNoChoiceInMerging) {
  ConvertSettings settings;
  settings.method = "palu";
  resolve(settings);
  EXPECT_EQ(settings.own<LatentSettings>().merge, MergeRule::kNone);
  EXPECT_EQ(settings.prefill, PrefillMode::kTruncated);
  EXPECT_EQ(settings.layers_per_group, 1);
  EXPECT_EQ(settings.sink_tokens + settings.window_tokens, 0);
  EXPECT_FALSE(settings.own<LatentSettings>().refit);
  EXPECT_THAT(refusal([](ConvertSettings& s) {
                s.method = "palu";
                s.own<LatentSettings>().factor = Factor::kJoint;
              }),
              HasSubstr("--factor joint"));
}

TEST(Settings, WithoutMergingNothingIsRefitted) {
  ConvertSettings settings;
  settings.own<LatentSettings>().merge = MergeRule::kNone;
  resolve(settings);
  EXPECT_FALSE(settings.own<LatentSettings>().refit);
  EXPECT_FALSE(needs_fisher(settings));
}

TEST(Settings, EverySettingIsInTheJson) {
  ConvertSettings a, b;
  b.seed = 1;
  EXPECT_NE(to_json(a), to_json(b));
  b = a;
  b.own<LatentSettings>().rank = 0.5;
  EXPECT_NE(to_json(a), to_json(b));
  EXPECT_EQ(to_json(a)["merge"], "ls");
}

}  // namespace
}  // namespace kvc::settings_test

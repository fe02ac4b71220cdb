#include "core/kv_plan_parts.h"

#include <gmock/gmock.h>

#include <numeric>

namespace kvc {
namespace {

using ::testing::ElementsAre;

std::vector<std::pair<int, int>> ranges_of(const KvPlan& plan) {
  std::vector<std::pair<int, int>> ranges;
  for (const LayerRange& part : parts_of(plan)) {
    ranges.emplace_back(part.first, part.count);
  }
  return ranges;
}

std::vector<int> converted(const KvPlan& plan) {
  std::vector<int> layers;
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    if (plan.layers[static_cast<std::size_t>(layer)] != KvSource::kPlain) {
      layers.push_back(layer);
    }
  }
  return layers;
}

LatentGroup group_of(int first_layer, int num_layers, std::int64_t rank, LatentBasis basis) {
  LatentGroup group;
  group.first_layer = first_layer;
  group.num_layers = num_layers;
  group.rank = rank;
  group.basis = basis;
  return group;
}

// Eight layers of 2 KV heads of 4 channels: 0 plain, 1 coded head by head, 2-3 coded together, 4 fused, 5-6 paired, 7 a
// group.
KvPlan mixed_plan() {
  KvPlan plan = plain_plan(8, 2, 4);
  plan.method = "coded";
  std::fill(plan.layers.begin() + 1, plan.layers.begin() + 4, KvSource::kCoded);
  for (const int head : {0, 1}) {
    plan.coded.push_back({.first_layer = 1, .head = head, .coefficients = {0, 0, 0, 0, 2}});
  }
  plan.coded.push_back({.first_layer = 2, .num_layers = 2, .coefficients = {0, 0, 0, 0, 4}});
  plan.layers[4] = KvSource::kFused;
  plan.fused.push_back({.layer = 4, .key_sources = {0}, .value_sources = {0}});
  plan.layers[5] = plan.layers[6] = KvSource::kPaired;
  plan.paired = PairedLayers{.first_layers = {5}};
  plan.layers[7] = KvSource::kLatent;
  plan.groups.push_back(group_of(7, 1, 4, LatentBasis::kWeights));
  plan.compression.target_kept_ratio = 0.5;
  plan.check();
  return plan;
}

TEST(KvPlanParts, AreLayersThatShareWhatIsStored) {
  EXPECT_THAT(ranges_of(mixed_plan()),
              ElementsAre(std::pair(1, 1), std::pair(2, 2), std::pair(4, 1), std::pair(5, 2),
                          std::pair(7, 1)));
  EXPECT_THAT(ranges_of(plain_plan(3, 2, 4)), ElementsAre());
}

TEST(KvPlanParts, OneAloneLeavesTheOthersPlain) {
  const KvPlan plan = mixed_plan();
  for (const LayerRange& part : parts_of(plan)) {
    const KvPlan alone = with_part_only(plan, part);
    std::vector<int> expected(static_cast<std::size_t>(part.count));
    std::iota(expected.begin(), expected.end(), part.first);
    EXPECT_EQ(converted(alone), expected);
    ASSERT_EQ(parts_of(alone).size(), 1U);
    EXPECT_DOUBLE_EQ(alone.compression.target_kept_ratio, 1 - 0.5 * part.count / 8);
  }
  EXPECT_EQ(with_part_only(plan, {1, 1}).coded.size(), 2U);
}

TEST(KvPlanParts, SettingsOfOtherKindsDoNotStay) {
  KvPlan plan = plain_plan(4, 2, 4);
  plan.method = "xkv";
  plan.layers.assign(4, KvSource::kLatent);
  plan.groups = {group_of(0, 2, 4, LatentBasis::kRequest),
                 group_of(2, 2, 5, LatentBasis::kRequest)};
  plan.request = RequestSettings{};
  plan.compression.granularity = Granularity::kGroup;
  const KvPlan alone = with_part_only(plan, {2, 2});
  ASSERT_EQ(alone.groups.size(), 1U);
  EXPECT_EQ(alone.groups[0].rank, 5);
  EXPECT_TRUE(alone.request);
  EXPECT_FALSE(with_part_only(mixed_plan(), {1, 1}).paired);
}

}  // namespace
}  // namespace kvc

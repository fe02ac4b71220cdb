#include "runtime/policies/merge_selection.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvc {
namespace {

using Flags = std::vector<bool>;

// Two groups of two layers, kv_dim 4: an entry is 64 bytes plain + 4, a latent of rank 4 is 16 + 4.
KvPlan two_groups(double target, Granularity granularity = Granularity::kToken) {
  KvPlan plan = plain_plan(4, 1, 4);
  plan.layers.assign(4, KvSource::kLatent);
  for (const int first : {0, 2}) {
    LatentGroup group;
    group.first_layer = first;
    group.num_layers = 2;
    group.rank = 4;
    plan.groups.push_back(group);
  }
  plan.compression.granularity = granularity;
  plan.compression.target_kept_ratio = target;
  return plan;
}

MergeCandidates three_candidates(std::vector<std::vector<float>> scores) {
  return {.num_tokens = 3,
          .num_candidates = {3, 3},
          .tokens = {{.unmerged = 3}, {.unmerged = 3}},
          .scores = std::move(scores)};
}

TEST(MergeSelection, MergesTheBestEntriesUntilTheTarget) {
  // 6 entries * 68 = 408 bytes of 384; each merge saves 48: four merges reach 216 <= 0.6 * 384 = 230.4.
  const auto merges = select_merges(two_groups(0.6), three_candidates({{9, 1, 8}, {7, 2, 6}}),
                                    KvDtype::kFloat32, 1);
  EXPECT_EQ(merges[0], (Flags{true, false, true}));
  EXPECT_EQ(merges[1], (Flags{true, false, true}));
}

TEST(MergeSelection, TiesGoToTheLowerPositionThenTheLowerGroup) {
  const auto merges = select_merges(two_groups(0.9), three_candidates({{1, 1, 1}, {1, 1, 1}}),
                                    KvDtype::kFloat32, 1);
  EXPECT_EQ(merges[0], (Flags{true, false, false}));  // 408 - 2 * 48 = 312 <= 345.6
  EXPECT_EQ(merges[1], (Flags{true, false, false}));
}

TEST(MergeSelection, WholeGroupsByTheirMeanScore) {
  const auto merges = select_merges(two_groups(0.7, Granularity::kGroup),
                                    three_candidates({{9, 0, 0}, {4, 4, 4}}), KvDtype::kFloat32, 1);
  EXPECT_EQ(merges[0], (Flags{false, false, false}));
  EXPECT_EQ(merges[1], (Flags{true, true, true}));
}

TEST(MergeSelection, CountsWhatIsAllocated) {
  // In pages of 4 tokens nothing is saved before a group's last unmerged token is gone.
  MergeCandidates candidates = three_candidates({{9, 8, 7}, {3, 2, 1}});
  const auto merges = select_merges(two_groups(0.95), candidates, KvDtype::kFloat32, 4);
  EXPECT_EQ(merges[0],
            (Flags{true, true, true}));  // 2 * 4 * 68 = 544, then 80 + 272 = 352 <= 364.8
  EXPECT_EQ(merges[1], (Flags{false, false, false}));
}

TEST(MergeSelection, NothingToDoAboveTheTargetOrWithoutARule) {
  const MergeCandidates candidates = three_candidates({{1, 1, 1}, {1, 1, 1}});
  KvPlan plan = two_groups(1.5);
  const std::vector<Flags> none(2, Flags(3, false));
  EXPECT_EQ(select_merges(plan, candidates, KvDtype::kFloat32, 1), none);
  plan = two_groups(0.1);
  plan.compression.rule = MergeRule::kNone;
  plan.compression.unmerged = UnmergedForm::kLatent;
  EXPECT_EQ(select_merges(plan, candidates, KvDtype::kFloat32, 1), none);
}

TEST(MergeSelection, LeavesOutGroupsThatSaveNothing) {
  KvPlan plan = two_groups(0.1);
  plan.groups[0].rank = 16;  // as many channels as the group's keys and values
  const auto merges =
      select_merges(plan, three_candidates({{9, 9, 9}, {1, 1, 1}}), KvDtype::kFloat32, 1);
  EXPECT_EQ(merges[0], (Flags{false, false, false}));
  EXPECT_EQ(merges[1], (Flags{true, true, true}));
}

TEST(MergeSelection, ScoresThatAreNoNumbersMergeLast) {
  const auto merges = select_merges(two_groups(0.6), three_candidates({{NAN, 1, 8}, {7, NAN, 6}}),
                                    KvDtype::kFloat32, 1);
  EXPECT_EQ(merges[0], (Flags{false, true, true}));
  EXPECT_EQ(merges[1], (Flags{true, false, true}));
}

}  // namespace
}  // namespace kvc

#include "convert/latent/latent_plan.h"

#include <gmock/gmock.h>

#include <numeric>

namespace kvc {
namespace {

using ::testing::ElementsAre;

TEST(RoundRank, GoesDownToTheMultiple) {
  EXPECT_EQ(round_rank(0.7 * 4096, 32, 4096), 2848);
  EXPECT_EQ(round_rank(0.7 * 4096, 1, 4096), 2867);
  EXPECT_EQ(round_rank(0.7 * 10, 1, 10), 7);  // 0.7 * 10 is 6.999...
}

TEST(RoundRank, TheCapNeedNotBeAMultiple) { EXPECT_EQ(round_rank(200, 32, 45), 45); }

TEST(RoundRank, IsNeverZero) {
  EXPECT_EQ(round_rank(3, 32, 100), 32);
  EXPECT_EQ(round_rank(3, 32, 20), 20);
}

TEST(AllocateRanks, FollowsTheScores) {
  EXPECT_THAT(allocate_ranks({1, 2, 1}, 64, {100, 100, 100}, 4), ElementsAre(16, 32, 16));
}

TEST(AllocateRanks, WhatACappedGroupLeavesGoesToTheOthers) {
  EXPECT_THAT(allocate_ranks({8, 1, 1}, 96, {40, 100, 100}, 4), ElementsAre(40, 28, 28));
}

TEST(AllocateRanks, EndsWhenEveryGroupIsCapped) {
  EXPECT_THAT(allocate_ranks({3, 2, 1}, 1000, {10, 10, 10}, 4), ElementsAre(10, 10, 10));
}

TEST(AllocateRanks, ZeroScoresCountAsEqual) {
  EXPECT_THAT(allocate_ranks({0, 0}, 16, {100, 100}, 4), ElementsAre(8, 8));
}

TEST(AllocateRanks, SpendsTheTotalWithinOneMultiple) {
  const std::vector<std::int64_t> ranks =
      allocate_ranks({1.3, 2.7, 0.9, 3.1}, 200, {90, 90, 90, 90}, 4);
  const std::int64_t sum = std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0});
  EXPECT_LE(sum, 200);
  EXPECT_GT(sum, 200 - 4);
}

}  // namespace
}  // namespace kvc

// The pivot gauge: an exact change of coordinates that keeps key channels verbatim.
#include "convert/latent/merging.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/kv_plan.h"

namespace kvc::pivot_gauge_test {
namespace {

constexpr std::int64_t kLayers = 3, kHeads = 2, kHeadDim = 8, kKvDim = kHeads * kHeadDim;

LatentGroup group_of(std::int64_t rank) {
  LatentGroup group;
  group.num_layers = kLayers;
  group.rank = rank;
  return group;
}

// Columns that shrink as those of a factorisation do.
at::Tensor factors(std::int64_t rank) {
  at::manual_seed(1);
  const at::Tensor scales = at::pow(0.97, at::arange(rank, at::kDouble));
  return at::randn({2 * kLayers * kKvDim, rank}, at::kDouble) * scales;
}

double largest(const at::Tensor& x) { return x.abs().max().item<double>(); }

TEST(PivotGauge, ChangesNothingThatIsRebuilt) {
  const at::Tensor b = factors(24);
  const PivotGauge gauge = pivot_gauge(group_of(24), kKvDim, kHeadDim, b);
  ASSERT_EQ(gauge.rows.size(), 24u);
  const at::Tensor latent = at::randn({24, 5}, at::kDouble);
  const at::Tensor changed = at::mm(gauge.transform, latent);
  const at::Tensor exact = at::mm(b, latent);
  const at::Tensor rebuilt = at::mm(regauge_reconstruct(gauge, b), changed);
  EXPECT_LT(largest(rebuilt - exact), 1e-12 * largest(exact));
  for (std::size_t i = 0; i < gauge.rows.size(); ++i) {  // bitwise as stored
    EXPECT_TRUE(at::equal(rebuilt[gauge.rows[i]], changed[static_cast<std::int64_t>(i)]));
  }
}

TEST(PivotGauge, CommutesWithMerging) {
  const at::Tensor b = factors(24);
  const PivotGauge gauge = pivot_gauge(group_of(24), kKvDim, kHeadDim, b);
  const at::Tensor first = at::randn({24, 4}, at::kDouble),
                   second = at::randn({24, 4}, at::kDouble);
  const at::Tensor before = at::mm(gauge.transform, first * 0.3 + second * 0.7);
  const at::Tensor after =
      at::mm(gauge.transform, first) * 0.3 + at::mm(gauge.transform, second) * 0.7;
  EXPECT_LT(largest(before - after), 1e-12 * largest(before));
}

TEST(PivotGauge, KeepsWholePairsOfKeysEvenly) {
  const PivotGauge gauge = pivot_gauge(group_of(24), kKvDim, kHeadDim, factors(24));
  std::map<std::int64_t, int> per_head;
  for (const std::int64_t row : gauge.rows) {
    EXPECT_LT(row % (2 * kKvDim), kKvDim) << "a value channel";
    const std::int64_t channel = row % kHeadDim;
    const std::int64_t partner = row - channel + (channel + kHeadDim / 2) % kHeadDim;
    EXPECT_TRUE(std::find(gauge.rows.begin(), gauge.rows.end(), partner) != gauge.rows.end());
    ++per_head[row / kHeadDim];
  }
  EXPECT_EQ(per_head.size(), static_cast<std::size_t>(kLayers * kHeads));
  for (const auto& [head, count] : per_head) {
    EXPECT_EQ(count, 4) << "head " << head;
  }
  EXPECT_LT(gauge.condition, 200);
}

TEST(PivotGauge, AnyRankUpToTheKeysChannels) {
  for (const std::int64_t rank : {1, 7, 30, 48}) {
    const at::Tensor b = factors(rank);
    const PivotGauge gauge = pivot_gauge(group_of(rank), kKvDim, kHeadDim, b);
    if (gauge.rows.empty()) {
      EXPECT_EQ(rank, 48) << "all channels: no choice is left";
      continue;
    }
    const at::Tensor latent = at::randn({rank, 3}, at::kDouble), exact = at::mm(b, latent);
    const at::Tensor rebuilt =
        at::mm(regauge_reconstruct(gauge, b), at::mm(gauge.transform, latent));
    EXPECT_LT(largest(rebuilt - exact), 1e-11 * largest(exact)) << rank;
  }
}

TEST(PivotGauge, RefusesWhatItCannotInvert) {
  EXPECT_TRUE(pivot_gauge(group_of(60), kKvDim, kHeadDim, factors(60)).rows.empty());
  at::Tensor b = factors(24);  // the last latent channel makes values alone
  b.view({kLayers, 2, kKvDim, 24}).select(1, 0).select(2, 23).zero_();
  EXPECT_TRUE(pivot_gauge(group_of(24), kKvDim, kHeadDim, b).rows.empty());
}

}  // namespace
}  // namespace kvc::pivot_gauge_test

#include "validate/comparison.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvc {
namespace {

TEST(ClusteredMean, OfEqualSequencesIsTheSpreadOfTheirMeans) {
  // Means 1, 2 and 6: standard deviation sqrt(7), over sqrt(3).
  const Estimate estimate = clustered_mean({{2, 2}, {4, 2}, {12, 2}});
  EXPECT_DOUBLE_EQ(estimate.mean, 3);
  EXPECT_DOUBLE_EQ(estimate.standard_error, std::sqrt(7.0 / 3.0));
}

TEST(ClusteredMean, WeighsSequencesByTheirPositions) {
  // Mean 10/4; residuals 1 - 2.5 and 9 - 3 * 2.5; 2/1 * (2.25 + 2.25) / 16.
  const Estimate estimate = clustered_mean({{1, 1}, {9, 3}});
  EXPECT_DOUBLE_EQ(estimate.mean, 2.5);
  EXPECT_DOUBLE_EQ(estimate.standard_error, 0.75);
}

TEST(ClusteredMean, OfOneSequenceHasNoKnownError) {
  const Estimate estimate = clustered_mean({{3, 2}});
  EXPECT_DOUBLE_EQ(estimate.mean, 1.5);
  EXPECT_TRUE(std::isnan(estimate.standard_error));
}

TEST(RootOf, PropagatesTheError) {
  const Estimate root = root_of({0.25, 0.1});
  EXPECT_DOUBLE_EQ(root.mean, 0.5);
  EXPECT_DOUBLE_EQ(root.standard_error, 0.1);
  EXPECT_DOUBLE_EQ(root_of({0, 0}).standard_error, 0);
}

TEST(Percentile, InterpolatesBetweenNeighbours) {
  const std::vector<float> sorted = {1, 2, 4, 8, 16};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0.5), 4);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0.875), 12);
  EXPECT_DOUBLE_EQ(percentile(sorted, 1), 16);
  EXPECT_DOUBLE_EQ(percentile({7}, 0.99), 7);
}

}  // namespace
}  // namespace kvc

#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "core/error.h"

namespace kvc {
namespace {

const at::Tensor kLogits =
    at::tensor({std::log(0.1f), std::log(0.5f), std::log(0.15f), std::log(0.25f)});

std::map<std::int64_t, int> draw(const SamplingOptions& options, int count,
                                 std::uint64_t seed = 1) {
  Sampler sampler(options, seed);
  std::map<std::int64_t, int> counts;
  for (int i = 0; i < count; ++i) {
    ++counts[sampler.next(kLogits)];
  }
  return counts;
}

TEST(Sampler, GreedyTakesTheLargestAndTheFirstOfEqualOnes) {
  Sampler sampler({}, 0);
  EXPECT_EQ(sampler.next(kLogits), 1);
  EXPECT_EQ(sampler.next(at::tensor({1.0f, 3.0f, 3.0f})), 1);
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler({.temperature = temperature}, 0);
    EXPECT_THROW(sampler.next(at::tensor({1.0f, std::nanf("")})), Error);
    EXPECT_THROW(sampler.next(at::tensor({1.0f, HUGE_VALF})), Error);
    EXPECT_EQ(sampler.next(at::tensor({-HUGE_VALF, 1.0f})), 1);
  }
}

TEST(Sampler, FollowsTheDistribution) {
  const auto counts = draw({.temperature = 1}, 20000);
  EXPECT_NEAR(counts.at(0), 2000, 200);
  EXPECT_NEAR(counts.at(1), 10000, 300);
  EXPECT_NEAR(counts.at(2), 3000, 250);
  EXPECT_NEAR(counts.at(3), 5000, 250);
}

TEST(Sampler, TemperatureSharpens) {
  // Probabilities squared: 0.25 of 0.01 + 0.25 + 0.0225 + 0.0625.
  EXPECT_NEAR(draw({.temperature = 0.5}, 20000).at(1), 20000 * 0.25 / 0.345, 300);
}

TEST(Sampler, TopKKeepsTheMostProbable) {
  const auto counts = draw({.temperature = 1, .top_k = 2}, 3000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts.at(1), 2000, 120);
  EXPECT_NEAR(counts.at(3), 1000, 120);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  EXPECT_EQ(draw({.temperature = 1, .top_p = 0.45}, 100).size(), 1u);
  EXPECT_EQ(draw({.temperature = 1, .top_p = 0.7}, 1000).size(), 2u);
  EXPECT_EQ(draw({.temperature = 1, .top_p = 0.85}, 1000).size(), 3u);
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  const SamplingOptions options{.temperature = 1};
  Sampler a(options, 7), b(options, 7), c(options, 8);
  std::vector<std::int64_t> first, second, third;
  for (int i = 0; i < 50; ++i) {
    first.push_back(a.next(kLogits));
    second.push_back(b.next(kLogits));
    third.push_back(c.next(kLogits));
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, third);
}

TEST(Sampler, RefusesImpossibleOptions) {
  EXPECT_THROW(Sampler({.temperature = -1}, 0), UsageError);
  EXPECT_THROW(Sampler({.top_k = -1}, 0), UsageError);
  EXPECT_THROW(Sampler({.top_p = 0}, 0), UsageError);
  EXPECT_THROW(Sampler({.top_p = 1.1}, 0), UsageError);
}

}  // namespace
}  // namespace kvc

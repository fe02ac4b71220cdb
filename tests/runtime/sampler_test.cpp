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
    EXPECT_THROW(sampler.next(at::tensor({-HUGE_VALF, -HUGE_VALF})), Error);
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

struct Golden {
  SamplingOptions options;
  std::vector<double> probabilities;
};

// Probabilities of transformers' processors (penalty, temperature, top-k, top-p, min-p in its order), for
// these logits after the tokens 3, 5, 9, 3.
const at::Tensor kGoldenLogits =
    at::tensor({2.0f, -1.0f, 0.5f, 3.0f, 3.0f, -0.25f, 1.5f, 0.75f, -2.0f, 2.5f});
const std::vector<Golden> kGolden = {
    {{1.0, 0, 1.0, 0.0, 1.0},
     {0.106667, 0.005311, 0.023801, 0.289952, 0.289952, 0.011243, 0.064697, 0.030561, 0.001954,
      0.175865}},
    {{0.7, 0, 1.0, 0.0, 1.0},
     {0.081833, 0.001126, 0.009601, 0.341468, 0.341468, 0.003288, 0.040061, 0.013722, 0.000270,
      0.167163}},
    {{1.0, 1, 1.0, 0.0, 1.0}, {0, 0, 0, 0.500000, 0.500000, 0, 0, 0, 0, 0}},
    {{1.0, 4, 1.0, 0.0, 1.0}, {0.123681, 0, 0, 0.336201, 0.336201, 0, 0, 0, 0, 0.203916}},
    {{1.0, 0, 0.6, 0.0, 1.0}, {0, 0, 0, 0.383652, 0.383652, 0, 0, 0, 0, 0.232697}},
    {{1.0, 0, 0.95, 0.0, 1.0},
     {0.111379, 0, 0, 0.302761, 0.302761, 0, 0.067555, 0.031911, 0, 0.183634}},
    {{1.0, 0, 1.0, 0.2, 1.0}, {0.115051, 0, 0, 0.312740, 0.312740, 0, 0.069782, 0, 0, 0.189687}},
    {{1.0, 0, 1.0, 0.0, 1.5},
     {0.148985, 0.007418, 0.033243, 0.148985, 0.404983, 0.013858, 0.090364, 0.042685, 0.002729,
      0.106752}},
    {{0.6, 6, 0.9, 0.1, 1.3}, {0.113069, 0, 0, 0.188825, 0.598643, 0, 0, 0, 0, 0.099464}},
    {{1.4, 5, 0.8, 0.25, 0.8}, {0, 0, 0, 0.449406, 0.263015, 0, 0, 0, 0, 0.287579}}};

TEST(Sampler, DrawsFromTheDistributionsOfTransformers) {
  for (std::size_t i = 0; i < kGolden.size(); ++i) {
    const auto left = Sampler(kGolden[i].options, 0, {3, 5, 9, 3}).distribution(kGoldenLogits);
    double total = 0;
    for (const Candidate& candidate : left) total += candidate.weight;
    std::vector<double> probabilities(kGolden[i].probabilities.size());
    for (const Candidate& candidate : left) {
      probabilities[static_cast<std::size_t>(candidate.id)] = candidate.weight / total;
    }
    for (std::size_t id = 0; id < probabilities.size(); ++id) {
      EXPECT_NEAR(probabilities[id], kGolden[i].probabilities[id], 1e-6) << i << " " << id;
    }
  }
}

TEST(Sampler, PenalisesWhatItChoseItself) {
  const at::Tensor logits = at::tensor({2.0f, 1.9f, -1.0f, 1.8f});
  Sampler sampler({.repetition_penalty = 1.2}, 0);
  EXPECT_EQ(sampler.next(logits), 0);
  EXPECT_EQ(sampler.next(logits), 1);
  EXPECT_EQ(sampler.next(logits), 3);
  EXPECT_EQ(sampler.next(logits), 0);  // all of 2, 1.9 and 1.8 divided once
}

// Ranking stops as soon as enough is ranked; the result must not show it.
TEST(Sampler, TopPOfALargeVocabularyKeepsTheMostProbable) {
  std::vector<float> logits;
  for (int id = 0; id < 5000; ++id) {
    logits.push_back(static_cast<float>((id * 7919) % 5000) / 1000);
  }
  const auto left = Sampler({.temperature = 1, .top_p = 0.5}, 0).distribution(at::tensor(logits));
  EXPECT_NEAR(static_cast<double>(left.size()), 5000 * (std::log(2.0) / 5), 15);
  for (std::size_t i = 1; i < left.size(); ++i) {
    EXPECT_EQ(logits[static_cast<std::size_t>(left[i - 1].id)] -
                      logits[static_cast<std::size_t>(left[i].id)] <
                  0.0015f,
              true)
        << i;
  }
}

TEST(Sampler, RefusesImpossibleOptions) {
  EXPECT_THROW(Sampler({.min_p = 1.1}, 0), UsageError);
  EXPECT_THROW(Sampler({.min_p = std::nan("")}, 0), UsageError);
  EXPECT_THROW(Sampler({.repetition_penalty = 0}, 0), UsageError);
  EXPECT_THROW(Sampler({.temperature = -1}, 0), UsageError);
  EXPECT_THROW(Sampler({.top_k = -1}, 0), UsageError);
  EXPECT_THROW(Sampler({.top_p = 0}, 0), UsageError);
  EXPECT_THROW(Sampler({.top_p = 1.1}, 0), UsageError);
}

}  // namespace
}  // namespace kvc

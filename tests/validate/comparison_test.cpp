#include "validate/comparison.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace kvc {
namespace {

at::Tensor logits(const std::vector<std::vector<double>>& probabilities) {
  std::vector<at::Tensor> rows;
  for (const auto& row : probabilities) {
    rows.push_back(at::tensor(row, at::kDouble).log().to(at::kFloat) + 3);  // softmax ignores the 3
  }
  return at::stack(rows);
}

TEST(PositionScores, OfHandSizedDistributions) {
  const PositionScores scores =
      score_positions(logits({{0.5, 0.25, 0.25}, {0.1, 0.8, 0.1}}),
                      logits({{0.25, 0.5, 0.25}, {0.2, 0.4, 0.4}}), at::tensor({0, 1}, at::kLong));
  // 0.5 ln 2 - 0.25 ln 2; 0.1 ln(1/2) + 0.8 ln 2 + 0.1 ln(1/4).
  EXPECT_NEAR(scores.kl_divergence[0], 0.25 * std::log(2), 1e-7);
  EXPECT_NEAR(scores.kl_divergence[1], 0.5 * std::log(2), 1e-7);
  EXPECT_NEAR(scores.reference_nll[0], std::log(2), 1e-7);
  EXPECT_NEAR(scores.candidate_nll[0], std::log(4), 1e-7);
  EXPECT_NEAR(scores.delta_p[0], -0.25, 1e-7);
  EXPECT_NEAR(scores.delta_p[1], -0.4, 1e-7);
  EXPECT_FALSE(scores.same_top[0]);
  EXPECT_TRUE(scores.same_top[1]);  // the first of equals
}

TEST(PositionScores, OfEqualLogitsAreExact) {
  const at::Tensor same = logits({{0.3, 0.7}, {0.999, 0.001}});
  const PositionScores scores = score_positions(same, same.clone(), at::tensor({1, 1}, at::kLong));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(scores.kl_divergence[i], 0.0);
    EXPECT_EQ(scores.reference_nll[i], scores.candidate_nll[i]);
    EXPECT_EQ(scores.delta_p[i], 0.0);
    EXPECT_TRUE(scores.same_top[i]);
  }
}

TEST(PositionScores, ChunksOfAWideVocabularyAreInOrder) {
  const std::int64_t positions = 5, vocabulary = 1'000'000;
  const at::Tensor reference = at::zeros({positions, vocabulary});
  const at::Tensor candidate = reference.clone();
  for (std::int64_t i = 0; i < positions; ++i) {
    candidate[i][0] = static_cast<float>(i);
  }
  const PositionScores scores =
      score_positions(reference, candidate, at::zeros({positions}, at::kLong));
  ASSERT_EQ(scores.candidate_nll.size(), 5u);
  for (std::int64_t i = 0; i < positions; ++i) {
    const double logit = static_cast<double>(i);
    EXPECT_NEAR(scores.candidate_nll[static_cast<std::size_t>(i)],
                std::log(std::exp(logit) + 999'999) - logit, 1e-6);
  }
}

TEST(PositionScores, RefusesLogitsThatAreNotFinite) {
  at::Tensor good = at::zeros({1, 2}), bad = at::zeros({1, 2});
  bad[0][1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(score_positions(good, bad, at::zeros({1}, at::kLong)), Error);
  bad[0][1] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(score_positions(bad, good, at::zeros({1}, at::kLong)), Error);
}

PositionScores scores_of(std::vector<double> kl) {
  PositionScores scores;
  scores.kl_divergence = std::move(kl);
  const std::size_t count = scores.kl_divergence.size();
  scores.reference_nll.assign(count, 1.0);
  scores.candidate_nll.assign(count, 1.5);
  scores.delta_p.assign(count, -0.5);
  scores.same_top.assign(count, true);
  scores.same_top[0] = false;
  return scores;
}

TEST(Comparison, GathersSequences) {
  ComparisonAccumulator accumulator;
  accumulator.add(2, scores_of({0, 0.5}));
  accumulator.add(2, scores_of({1, 2.5}));
  const Comparison comparison = accumulator.finalize();
  EXPECT_EQ(comparison.num_positions, 4);
  EXPECT_DOUBLE_EQ(comparison.kl_divergence.mean, 1);
  EXPECT_DOUBLE_EQ(comparison.kl_divergence.standard_error, 0.75);
  EXPECT_DOUBLE_EQ(comparison.kl_median, 0.75);
  EXPECT_DOUBLE_EQ(comparison.kl_max, 2.5);
  EXPECT_DOUBLE_EQ(comparison.perplexity_ratio, std::exp(0.5));
  EXPECT_DOUBLE_EQ(comparison.reference_perplexity, std::exp(1.0));
  EXPECT_DOUBLE_EQ(comparison.log_perplexity_ratio.standard_error, 0);  // paired: no noise left
  EXPECT_DOUBLE_EQ(comparison.same_top.mean, 0.5);
  EXPECT_DOUBLE_EQ(comparison.delta_p.mean, -0.5);
  EXPECT_DOUBLE_EQ(comparison.delta_p_rms.mean, 0.5);
}

TEST(Comparison, CountsDivergencesByDecade) {
  ComparisonAccumulator accumulator;
  accumulator.add(0, scores_of({0, 1e-12, 1.5e-8, 1.1, 1e9}));
  const std::vector<std::int64_t> counts = accumulator.finalize().kl_histogram.counts;
  EXPECT_EQ(counts.front(), 3);  // zero, below the range, and 10^-7.82
  EXPECT_EQ(counts[32], 1);      // 8 decades of 4 bins
  EXPECT_EQ(counts.back(), 1);
}

TEST(Comparison, AveragesByPosition) {
  ComparisonAccumulator accumulator;
  accumulator.add(3, scores_of({1, 2}));
  accumulator.add(3, scores_of({3, 6}));
  const std::vector<PositionRange> ranges = accumulator.finalize().kl_by_position;
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].begin, 3);
  EXPECT_EQ(ranges[1].end, 5);
  EXPECT_DOUBLE_EQ(ranges[0].kl_divergence, 2);
  EXPECT_DOUBLE_EQ(ranges[1].kl_divergence, 4);
}

TEST(Comparison, NeedsAPosition) { EXPECT_THROW(ComparisonAccumulator().finalize(), Error); }

}  // namespace
}  // namespace kvc

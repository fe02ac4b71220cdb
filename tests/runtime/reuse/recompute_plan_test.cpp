#include "runtime/reuse/recompute_plan.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/testing/tensor_matchers.h"

namespace kvc {
namespace {

using testing::tensors_identical;

at::Tensor tokens(const std::vector<std::int64_t>& list) { return at::tensor(list, at::kLong); }
at::Tensor numbers(const std::vector<double>& list) { return at::tensor(list, at::kDouble); }

TEST(RecomputePlan, HotTokensAreTheFewestThatReachTheShare) {
  // 0.4 + 0.2 reach 0.55 of 1; of the two 0.2 the first is taken.
  const HotTokens hot = hot_tokens(numbers({0.1, 0.2, 0.4, 0.2, 0.1}), 0.55);
  EXPECT_TRUE(tensors_identical(hot.hot, tokens({1, 2})));
  EXPECT_DOUBLE_EQ(hot.ratio, 0.4);
  EXPECT_EQ(hot_tokens(numbers({0.1, 0.2, 0.4}), 1).hot.size(0), 3);
  EXPECT_EQ(hot_tokens(numbers({0.1, 0.2, 0.4}), 0).hot.size(0), 1);
}

TEST(RecomputePlan, FirstSetTakesTheLargestDeviationsOfHotAndColdAndTheLastToken) {
  ReuseOptions options;
  options.hot = 0.5;
  options.cold = 0.34;
  const HotTokens hot{.hot = tokens({0, 1, 2, 3}), .ratio = 0.5};
  const at::Tensor deviation = numbers({1, 5, 7, 2, 9, 8, 0, 0});
  EXPECT_TRUE(tensors_identical(first_recomputed(deviation, hot, options), tokens({1, 2, 4, 7})));
  options.hot = options.cold = 0;
  EXPECT_TRUE(tensors_identical(first_recomputed(deviation, hot, options), tokens({7})));
  options.hot = options.cold = 1;
  EXPECT_EQ(first_recomputed(deviation, hot, options).size(0), 8);
}

TEST(RecomputePlan, CountsDecayTowardsTheirEnd) {
  ReuseOptions options;  // 0.8, 0.02, 32
  EXPECT_EQ(num_recomputed(1, 1000, 5000, options), 1000);
  EXPECT_EQ(num_recomputed(2, 1000, 5000, options), 820);  // 100 + 900 * 0.8
  EXPECT_EQ(num_recomputed(3, 1000, 5000, options), 676);
  EXPECT_EQ(num_recomputed(40, 1000, 5000, options), 100);
  EXPECT_EQ(num_recomputed(40, 300, 1000, options), 32);
  EXPECT_EQ(num_recomputed(2, 20, 1000, options), 20);  // never more than the first
  options.decay = 1;
  EXPECT_EQ(num_recomputed(9, 1000, 5000, options), 1000);
}

TEST(RecomputePlan, NextSetAlwaysHasTheLastToken) {
  EXPECT_TRUE(tensors_identical(next_recomputed(numbers({3, 1, 3, 9, 0}), 3), tokens({0, 3, 4})));
  EXPECT_TRUE(tensors_identical(next_recomputed(numbers({3, 1}), 1), tokens({1})));
  EXPECT_EQ(next_recomputed(numbers({3, 1, 2}), 3).size(0), 3);
}

TEST(RecomputePlan, RetentionFollowsItsSchedule) {
  ReuseOptions options;  // 0.8 to 0.4
  const auto counts = [&](double hot_ratio) {
    std::vector<std::int64_t> all;
    for (int layer = 0; layer < 3; ++layer) {
      all.push_back(num_retained(layer, 3, 1000, hot_ratio, options));
    }
    return all;
  };
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(counts(0.3), (List{800, 566, 400}));
  EXPECT_EQ(counts(0.9), (List{900, 600, 400}));
  options.retention = Retention::kConstant;
  EXPECT_EQ(counts(0.3), (List{800, 800, 800}));
  options.retention = Retention::kGrowth;
  EXPECT_EQ(counts(0.3), (List{800, 894, 1000}));
  options.retention = Retention::kAll;
  EXPECT_EQ(counts(0.3), (List{1000, 1000, 1000}));
  options.retention = Retention::kDecay;
  EXPECT_EQ(num_retained(0, 1, 1000, 0.3, options), 800);
  // From 0.8 to 0.4 over many layers the mean share is (0.8 - 0.4) / ln 2 = 0.577.
  double sum = 0;
  for (int layer = 0; layer < 1000; ++layer) {
    sum += static_cast<double>(num_retained(layer, 1000, 1000000, 0, options));
  }
  EXPECT_NEAR(sum / 1e9, 0.577, 0.001);
}

TEST(RecomputePlan, RetainsTheLastThenRecomputedThenHotThenTheOthers) {
  const at::Tensor attention = numbers({9, 1, 2, 8, 3, 4, 0});
  const at::Tensor recomputed = tokens({1, 2}), hot = tokens({2, 4, 5});
  const auto kept = [&](std::int64_t count) {
    return retained_tokens(count, recomputed, hot, attention);
  };
  EXPECT_TRUE(tensors_identical(kept(1), tokens({6})));
  EXPECT_TRUE(tensors_identical(kept(2), tokens({2, 6})));
  EXPECT_TRUE(tensors_identical(kept(3), tokens({1, 2, 6})));
  EXPECT_TRUE(tensors_identical(kept(4), tokens({1, 2, 5, 6})));
  EXPECT_TRUE(tensors_identical(kept(6), tokens({0, 1, 2, 4, 5, 6})));
  EXPECT_EQ(kept(9).size(0), 7);
}

TEST(ReuseOptions, AreParsedFromWords) {
  ReuseOptions options;
  parse_reuse("min-similarity=0.9,retention=growth,rerotate=on,least-tokens=7,size=2MiB", options);
  EXPECT_EQ(options.min_similarity, 0.9);
  EXPECT_EQ(options.retention, Retention::kGrowth);
  EXPECT_TRUE(options.rerotate);
  EXPECT_EQ(options.least_tokens, 7);
  EXPECT_EQ(options.store_bytes, 2 << 20);
  parse_reuse("", options);
  for (const char* wrong : {"x=1", "hot", "hot=", "hot=1.5", "hot=a", "retention=some", "size=big",
                            "min-tokens=0", "candidates=2.5", "hot=nan"}) {
    EXPECT_THROW(parse_reuse(wrong, options), UsageError) << wrong;
  }
}

}  // namespace
}  // namespace kvc

#include "runtime/kernels/decayed_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc {
namespace {

using testing::random_numbers;

TEST(DecayedScores, AddProbabilitiesOfAKvHeadsQueries) {
  const std::vector<float> scores{0, std::log(3.0f), std::log(2.0f), 0};  // 2 rows of 2 heads
  const std::vector<float> log_sum{std::log(4.0f), std::log(6.0f)};
  std::vector<float> to{8, 4};
  update_decayed_scores_reference({.scores = scores.data(),
                                   .log_sum = log_sum.data(),
                                   .num_rows = 2,
                                   .num_heads = 2,
                                   .num_kv_heads = 1,
                                   .decay = 0.5f,
                                   .to = to.data()});
  EXPECT_FLOAT_EQ(to[0], 4 + 1.0f / 4 + 3.0f / 6);
  EXPECT_FLOAT_EQ(to[1], 2 + 2.0f / 4 + 1.0f / 6);
}

TEST(DecayedScores, MatchReference) {
  for (const std::int64_t num_kv_heads : {1, 2, 3}) {
    for (const std::int64_t heads_per_kv : {1, 2, 3, 7, 8, 16, 17, 33}) {
      const std::int64_t num_rows = 37, num_heads = num_kv_heads * heads_per_kv;
      const std::vector<float> scores = random_numbers(num_rows * num_heads, 1);
      const std::vector<float> log_sum = random_numbers(num_heads, 2);
      std::vector<float> actual = random_numbers(num_rows * num_kv_heads, 3), expected = actual;
      DecayedScoresParams params{.scores = scores.data(),
                                 .log_sum = log_sum.data(),
                                 .num_rows = num_rows,
                                 .num_heads = num_heads,
                                 .num_kv_heads = num_kv_heads,
                                 .decay = 0.98f,
                                 .to = actual.data()};
      update_decayed_scores(params);
      params.to = expected.data();
      update_decayed_scores_reference(params);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], 1e-5 * (1 + std::abs(expected[i]))) << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvc

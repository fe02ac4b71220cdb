#include "runtime/kernels/decayed_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/kernels/query_quads.h"
#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc {
namespace {

using testing::random_numbers;

TEST(DecayedScores, AddProbabilitiesOfAKvHeadsQueries) {
  // 2 rows of 2 heads and of 2 lanes without one
  std::vector<float> scores{0, std::log(3.0f), NAN, 7, std::log(2.0f), 0, NAN, 7};
  const std::vector<float> log_sum{std::log(4.0f), std::log(6.0f)};
  for (const auto update : {update_decayed_scores_reference, update_decayed_scores}) {
    std::vector<float> first{8}, second{4};  // blocks
    float* const to[] = {first.data(), second.data()};
    update({.scores = {scores.data(), 8},
            .log_sum = log_sum.data(),
            .num_rows = 2,
            .num_heads = 2,
            .num_kv_heads = 1,
            .decay = 0.5f,
            .to = to,
            .block_rows = 1});
    EXPECT_FLOAT_EQ(first[0], 4 + 1.0f / 4 + 3.0f / 6);
    EXPECT_FLOAT_EQ(second[0], 2 + 2.0f / 4 + 1.0f / 6);
  }
}

TEST(DecayedScores, MatchReference) {
  const std::int64_t num_rows = 150;
  for (const std::int64_t num_kv_heads : {1, 2, 3}) {
    for (const std::int64_t heads_per_kv : {1, 2, 3, 4, 7, 8, 16, 17, 33}) {
      for (const std::int64_t block_rows : {5, 16, 150, 512}) {
        const std::int64_t num_heads = num_kv_heads * heads_per_kv;
        const QuadHeads heads(num_heads, num_kv_heads);
        std::vector<float> scores = random_numbers(heads.num_scores(num_rows), 1);
        const std::vector<float> log_sum = random_numbers(num_heads, 2);
        std::vector<float> actual = random_numbers(num_rows * num_kv_heads, 3), expected = actual;
        std::vector<float*> actual_blocks, expected_blocks;
        for (std::int64_t row = 0; row < num_rows; row += block_rows) {
          actual_blocks.push_back(actual.data() + row * num_kv_heads);
          expected_blocks.push_back(expected.data() + row * num_kv_heads);
        }
        DecayedScoresParams params{.scores = {scores.data(), num_rows * kQuad},
                                   .log_sum = log_sum.data(),
                                   .num_rows = num_rows,
                                   .num_heads = num_heads,
                                   .num_kv_heads = num_kv_heads,
                                   .decay = 0.98f,
                                   .to = actual_blocks.data(),
                                   .block_rows = block_rows};
        update_decayed_scores(params);
        params.to = expected_blocks.data();
        update_decayed_scores_reference(params);
        for (std::size_t i = 0; i < actual.size(); ++i) {
          ASSERT_NEAR(actual[i], expected[i], 1e-5 * (1 + std::abs(expected[i])))
              << i << ", " << heads_per_kv << " query heads, blocks of " << block_rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvc

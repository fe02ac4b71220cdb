#include "runtime/kernels/decode_attention.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc {
namespace {

using testing::random_numbers;
using testing::StoredRows;

// Two query heads of one KV head with channels 1 and 2.
TEST(KeyScores, AreProductsOfQueriesAndKeys) {
  const std::vector<float> query{1, 0, 2, 3}, key{5, 7, -1, 4};
  const void* block = key.data();
  const KvSegment segment{.key = {&block, 2, 2}};
  const DecodeAttentionParams params{
      .query = query.data(), .num_heads = 2, .num_kv_heads = 1, .head_dim = 2, .scale = 0.5f};
  for (const auto& kernel : {key_scores_reference, key_scores}) {
    std::vector<float> scores(4, -9);
    kernel(params, segment, 0, 2, scores.data());
    EXPECT_EQ(scores, (std::vector<float>{2.5f, 15.5f, -0.5f, 5}));
  }
}

// Element of the keys, head_dim.
class KeyScoresOf : public ::testing::TestWithParam<std::tuple<KvElement, std::int64_t>> {};

TEST_P(KeyScoresOf, MatchesReference) {
  const auto [element, head_dim] = GetParam();
  const std::int64_t num_kv_heads = 2, num_heads = 14, rows = 203;
  const StoredRows key({rows, num_kv_heads * head_dim, head_dim, 16, element}, 1);
  const std::vector<float> query = random_numbers(num_heads * head_dim, 2);
  const KvSegment segment{.key = key.rows()};
  for (const float softcap : {0.0f, 3.0f}) {
    const DecodeAttentionParams params{.query = query.data(),
                                       .num_heads = num_heads,
                                       .num_kv_heads = num_kv_heads,
                                       .head_dim = head_dim,
                                       .scale = 0.3f,
                                       .softcap = softcap};
    for (const auto& [first, last] : {std::pair(0, 203), {5, 101}, {202, 203}}) {
      std::vector<float> actual(rows * num_heads, -9), expected = actual;
      key_scores(params, segment, first, last, actual.data());
      key_scores_reference(params, segment, first, last, expected.data());
      for (std::size_t i = 0; i < actual.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], 2e-5) << first << " .. " << last << ", number " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, KeyScoresOf,
                         ::testing::Combine(::testing::Values(KvElement::kFloat32,
                                                              KvElement::kBFloat16,
                                                              KvElement::kFloat16),
                                            ::testing::Values(8, 64, 72)));

}  // namespace
}  // namespace kvc

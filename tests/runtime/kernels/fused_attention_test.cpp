#include "runtime/kernels/fused_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "tests/runtime/kernels/kernel_inputs.h"
#include "tests/runtime/kernels/runtime_targets.h"

namespace kvc {
namespace {

using testing::Partial;
using testing::partials_close;
using testing::random_numbers;
using testing::StoredRows;
using testing::tolerance_of_values;

// Keys 1 and 2 times ln 3 and -ln 3 / 2: the scores of two tokens with keys (1, 0), (2, 2).
TEST(FusedAttentionReference, SumsKeysAndValuesByChannels) {
  const float log3 = std::log(3.0f), query = 1, key1[] = {1, 2}, key2[] = {0, 2};
  const float value1[] = {1, 1}, value2[] = {0, 4}, first_key = log3, second_key = -log3 / 2;
  const float first_value = 1, second_value = 2;
  const void* blocks[] = {key1, key2, value1, value2};
  FusedSegment segment;
  segment.first = {.key = {&blocks[0], 2, 2}, .value = {&blocks[2], 2, 2}};
  segment.second = {.key = {&blocks[1], 2, 2}, .value = {&blocks[3], 2, 2}};
  segment.first_key = &first_key;
  segment.second_key = &second_key;
  segment.first_value = &first_value;
  segment.second_value = &second_value;
  Partial partial(1, 1);
  // Scores ln 3 and 2 ln 3 - ln 3, values 1 and 9.
  fused_attention_partial_reference(
      {.query = &query, .num_heads = 1, .num_kv_heads = 1, .head_dim = 1}, segment, 0, 2,
      partial.view());
  EXPECT_NEAR(partial.max[0], log3, 1e-6);
  EXPECT_NEAR(partial.output[0] / partial.sum[0], 5, 1e-5);
}

// Element, query heads per KV head, head_dim.
using Shape = std::tuple<KvElement, std::int64_t, std::int64_t>;

class FusedAttention : public ::testing::TestWithParam<Shape> {};

TEST_P(FusedAttention, MatchesReference) {
  const auto [element, heads_per_kv, head_dim] = GetParam();
  const std::int64_t num_kv_heads = 2, num_heads = heads_per_kv * num_kv_heads, num_rows = 150;
  const std::int64_t width = num_kv_heads * head_dim;
  const StoredRows key1({num_rows, width, head_dim, 64, element, KvScales::kPerChannel}, 1);
  const StoredRows key2({num_rows, width, head_dim, 96, element, KvScales::kPerChannel}, 2);
  const StoredRows value1({num_rows, width, head_dim, 64, element}, 3);
  const StoredRows value2({num_rows, width, head_dim, 96, KvElement::kBFloat16}, 4);
  const testing::Angles angles(num_rows, head_dim / 2, false);
  const std::vector<float> query = random_numbers(num_heads * head_dim, 5);
  const std::vector<float> factors = random_numbers(4 * width, 6);
  FusedSegment segment;
  segment.first = {.key = key1.rows(), .value = value1.rows()};
  segment.second = {.key = key2.rows(), .value = value2.rows()};
  segment.first.raw_key = segment.second.raw_key = is_quantised(element);
  DecodeAttentionParams params{.query = query.data(),
                               .num_heads = num_heads,
                               .num_kv_heads = num_kv_heads,
                               .head_dim = head_dim,
                               .scale = 0.5f / std::sqrt(static_cast<float>(head_dim))};
  params.raw_keys.rope = angles.rope;
  for (const bool scaled : {false, true}) {
    if (scaled) {
      segment.first_key = factors.data();
      segment.second_key = factors.data() + width;
      segment.first_value = factors.data() + 2 * width;
      segment.second_value = factors.data() + 3 * width;
    }
    for (const auto& [first, last, special] :
         {std::tuple(0, 150, true), {0, 150, false}, {41, 133, false}, {149, 150, true}}) {
      const testing::SpecialInstructions instructions(special);
      // The second layer's values are bfloat16 in every case, and factors make them larger.
      const double tolerance =
          std::max(is_quantised(element) ? 1e-3 : 2e-5,
                   (special ? 4 : 2) * tolerance_of_values(KvElement::kBFloat16));
      Partial actual(num_heads, head_dim), expected(num_heads, head_dim);
      fused_attention_partial(params, segment, first, last, actual.view());
      fused_attention_partial_reference(params, segment, first, last, expected.view());
      EXPECT_TRUE(partials_close(actual, expected, tolerance)) << first << " .. " << last;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FusedAttention,
                         ::testing::Combine(::testing::Values(KvElement::kFloat32,
                                                              KvElement::kBFloat16,
                                                              KvElement::kFloat16, KvElement::kInt8,
                                                              KvElement::kInt4, KvElement::kInt2),
                                            ::testing::Values(1, 4, 7),
                                            ::testing::Values(8, 64, 96, 128)));

// One source with weights of one and one with weights of zero: the first layer alone.
TEST(FusedAttention, IsPlainAttentionWhereOneSourceHasNoWeight) {
  const StoredRows key1({70, 64, 64, 64, KvElement::kBFloat16}, 1);
  const StoredRows value1({70, 64, 64, 64, KvElement::kBFloat16}, 2);
  const StoredRows other({70, 64, 64, 64, KvElement::kBFloat16}, 3);
  const std::vector<float> query = random_numbers(2 * 64, 4), zeros(64);
  FusedSegment segment;
  segment.first = {.key = key1.rows(), .value = value1.rows()};
  segment.second = {.key = other.rows(), .value = other.rows()};
  segment.second_key = segment.second_value = zeros.data();
  const DecodeAttentionParams params{
      .query = query.data(), .num_heads = 2, .num_kv_heads = 1, .head_dim = 64};
  Partial fused(2, 64), plain(2, 64);
  fused_attention_partial(params, segment, 0, 70, fused.view());
  decode_attention_partial(params, segment.first, 0, 70, plain.view());
  EXPECT_EQ(fused.max, plain.max);
  EXPECT_EQ(fused.sum, plain.sum);
  EXPECT_EQ(fused.output, plain.output);
}

}  // namespace
}  // namespace kvc

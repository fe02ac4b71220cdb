#include "runtime/kernels/decode_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "runtime/kernels/query_quads.h"
#include "tests/runtime/kernels/kernel_inputs.h"
#include "tests/runtime/kernels/runtime_targets.h"

namespace kvc {
namespace {

using testing::Partial;
using testing::partials_close;
using testing::random_bfloat16;
using testing::random_numbers;
using testing::StoredRows;
using testing::tolerance_of_values;

// Element type, query heads per KV head, head_dim, rows of a block.
using Shape = std::tuple<KvElement, std::int64_t, std::int64_t, std::int64_t>;

class DecodeAttentionRows : public ::testing::TestWithParam<Shape> {};

TEST_P(DecodeAttentionRows, MatchesReference) {
  const auto [element, heads_per_kv, head_dim, block_rows] = GetParam();
  const std::int64_t num_kv_heads = 2, num_heads = heads_per_kv * num_kv_heads, num_rows = 300;
  const StoredRows key({num_rows, num_kv_heads * head_dim, head_dim, block_rows, element}, 1);
  const StoredRows value({num_rows, num_kv_heads * head_dim, head_dim, block_rows, element}, 2);
  const std::vector<float> numbers = random_numbers(num_heads * head_dim, 3);
  const std::vector<float> rounded = random_bfloat16(num_heads * head_dim, 3);
  const KvSegment segment{.key = key.rows(), .value = value.rows()};
  for (const auto& [query, softcap, special] : {std::tuple(numbers, 0.0f, true),
                                                {numbers, 1.5f, true},
                                                {rounded, 0.0f, true},
                                                {rounded, 1.5f, false}}) {
    const testing::SpecialInstructions instructions(special);
    const DecodeAttentionParams params{.query = query.data(),
                                       .num_heads = num_heads,
                                       .num_kv_heads = num_kv_heads,
                                       .head_dim = head_dim,
                                       .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                                       .softcap = softcap};
    for (const auto& [first, last] : {std::pair(0, 1), {0, 300}, {37, 300}, {63, 129}, {5, 6}}) {
      Partial actual(num_heads, head_dim), expected(num_heads, head_dim);
      decode_attention_partial(params, segment, first, last, actual.view());
      decode_attention_partial_reference(params, segment, first, last, expected.view());
      EXPECT_TRUE(partials_close(actual, expected, tolerance_of_values(element)))
          << first << " .. " << last;
    }
  }
}

TEST_P(DecodeAttentionRows, AddsBiasesAndTellsScores) {
  const auto [element, heads_per_kv, head_dim, block_rows] = GetParam();
  const std::int64_t num_kv_heads = 2, num_heads = heads_per_kv * num_kv_heads, num_rows = 90;
  const StoredRows key({num_rows, num_kv_heads * head_dim, head_dim, block_rows, element}, 1);
  const StoredRows value({num_rows, num_kv_heads * head_dim, head_dim, block_rows, element}, 2);
  const std::vector<float> bias = random_numbers(num_rows * num_kv_heads, 4);
  const KvSegment segment{.key = key.rows(), .value = value.rows(), .bias = bias.data()};
  for (const std::vector<float>& query :
       {random_bfloat16(num_heads * head_dim, 3), random_numbers(num_heads * head_dim, 3)}) {
    const DecodeAttentionParams params{.query = query.data(),
                                       .num_heads = num_heads,
                                       .num_kv_heads = num_kv_heads,
                                       .head_dim = head_dim,
                                       .scale = 1 / std::sqrt(static_cast<float>(head_dim))};
    Partial actual(num_heads, head_dim), expected(num_heads, head_dim);
    const QuadHeads quads(params);
    std::vector<float> scores(static_cast<std::size_t>(quads.num_scores(num_rows)));
    std::vector<float> exact = scores;
    AttentionPartial to = actual.view(), exact_to = expected.view();
    to.scores = {scores.data(), num_rows * kQuad};
    exact_to.scores = {exact.data(), num_rows * kQuad};
    decode_attention_partial(params, segment, 3, num_rows, to);
    decode_attention_partial_reference(params, segment, 3, num_rows, exact_to);
    EXPECT_TRUE(partials_close(actual, expected, tolerance_of_values(element)));
    for (std::int64_t head = 0; head < num_heads; ++head) {
      for (std::int64_t row = 0; row < num_rows; ++row) {
        const auto i = static_cast<std::size_t>(quads.place(head, row, num_rows * kQuad));
        ASSERT_NEAR(scores[i], exact[i], 2e-5) << head << " " << row;
      }
    }
    EXPECT_EQ(scores[0], 0);  // of a row that is not attended to
  }
}

// Weights that are powers of two, which every type holds.
TEST_P(DecodeAttentionRows, SumsValuesExactly) {
  const auto [element, heads_per_kv, head_dim, block_rows] = GetParam();
  const std::int64_t num_kv_heads = 2, num_heads = heads_per_kv * num_kv_heads, num_rows = 90;
  const StoredRows value({num_rows, num_kv_heads * head_dim, head_dim, block_rows, element}, 2);
  const std::vector<float> query(static_cast<std::size_t>(num_heads * head_dim));
  std::vector<float> bias;
  for (std::int64_t i = 0; i < num_rows * num_kv_heads; ++i) {
    bias.push_back(-std::log(2.0f) * static_cast<float>(i * i % 11));
  }
  const KvSegment segment{.key = value.rows(), .value = value.rows(), .bias = bias.data()};
  const DecodeAttentionParams params{.query = query.data(),
                                     .num_heads = num_heads,
                                     .num_kv_heads = num_kv_heads,
                                     .head_dim = head_dim};
  for (const auto& [first, last] : {std::pair(0, 90), {1, 64}, {33, 34}}) {
    Partial actual(num_heads, head_dim), expected(num_heads, head_dim);
    decode_attention_partial(params, segment, first, last, actual.view());
    decode_attention_partial_reference(params, segment, first, last, expected.view());
    EXPECT_TRUE(partials_close(actual, expected, 1e-5)) << first << " .. " << last;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DecodeAttentionRows,
    ::testing::Combine(::testing::Values(KvElement::kFloat32, KvElement::kBFloat16,
                                         KvElement::kFloat16),
                       ::testing::Values(1, 3, 4, 7, 8, 12),
                       ::testing::Values(1, 6, 7, 8, 20, 32, 64, 72, 96, 128, 256),
                       ::testing::Values(16, 64, 100, 512)));

// Element of keys and of values, head_dim, rotary pairs, interleaved, a run of positions.
using RawShape = std::tuple<KvElement, KvElement, std::int64_t, int, bool, bool>;

class DecodeAttentionRawKeys : public ::testing::TestWithParam<RawShape> {};

TEST_P(DecodeAttentionRawKeys, MatchesReference) {
  const auto [key_element, value_element, head_dim, pairs_of_four, interleaved, run] = GetParam();
  const std::int64_t num_kv_heads = 2, num_heads = 6, num_rows = 100;
  const std::int64_t num_pairs = head_dim * pairs_of_four / 8;
  const bool codes = is_quantised(key_element) || is_quantised(value_element);
  const auto shape = [&](KvElement element, KvScales scales) {
    return testing::RowsShape{num_rows, num_kv_heads * head_dim, head_dim, 64, element, scales};
  };
  const StoredRows key(shape(key_element, KvScales::kPerChannel), 1);
  const StoredRows value(shape(value_element, KvScales::kPerRow), 2);
  const testing::Angles angles(700, num_pairs, interleaved, 1.5);
  std::vector<std::int32_t> positions;
  for (std::int32_t row = 0; row < num_rows; ++row) {
    positions.push_back(row < 70 ? 400 + row : 3 * row);
  }
  const std::vector<float> query = random_numbers(num_heads * head_dim, 3);
  const std::vector<float> norm = random_numbers(head_dim, 4);
  KvSegment segment{.key = key.rows(), .value = value.rows()};
  segment.positions = run ? nullptr : positions.data();
  segment.first_position = 100;
  segment.raw_key = true;
  DecodeAttentionParams params{.query = query.data(),
                               .num_heads = num_heads,
                               .num_kv_heads = num_kv_heads,
                               .head_dim = head_dim,
                               .scale = 0.3f / std::sqrt(static_cast<float>(head_dim))};
  params.raw_keys.rope = angles.rope;
  for (const float* weights : {static_cast<const float*>(nullptr), norm.data()}) {
    params.raw_keys.norm = weights;
    params.raw_keys.norm_epsilon = 1e-5f;
    for (const auto& [first, last, special] :
         {std::tuple(0, 1, true), {37, 100, true}, {37, 100, false}, {5, 6, false}}) {
      const testing::SpecialInstructions instructions(special);
      Partial actual(num_heads, head_dim), expected(num_heads, head_dim);
      decode_attention_partial(params, segment, first, last, actual.view());
      decode_attention_partial_reference(params, segment, first, last, expected.view());
      EXPECT_TRUE(partials_close(actual, expected,
                                 std::max(codes ? 5e-4 : 1e-5, tolerance_of_values(value_element))))
          << first << " .. " << last;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DecodeAttentionRawKeys,
    ::testing::Combine(::testing::Values(KvElement::kFloat32, KvElement::kBFloat16,
                                         KvElement::kInt8, KvElement::kInt4, KvElement::kInt2),
                       ::testing::Values(KvElement::kBFloat16, KvElement::kInt8, KvElement::kInt4,
                                         KvElement::kInt2),
                       ::testing::Values(8, 24, 64, 96, 128), ::testing::Values(0, 2, 4),
                       ::testing::Bool(), ::testing::Bool()));

// Codes of keys and values of several shapes, as many heads as fill quads and not, tiles that begin anywhere.
TEST(DecodeAttention, ReadsCodesOfAllShapes) {
  for (const auto& [heads_per_kv, head_dim, value_dim, block_rows] :
       {std::tuple(4, 128, 128, 64), {1, 64, 32, 32}, {8, 192, 96, 128}, {5, 256, 64, 96}}) {
    const std::int64_t num_kv_heads = 3, num_heads = heads_per_kv * num_kv_heads, num_rows = 250;
    for (const KvElement element : {KvElement::kInt8, KvElement::kInt4, KvElement::kInt2}) {
      const StoredRows key(
          {num_rows, num_kv_heads * head_dim, head_dim, block_rows, element, KvScales::kPerChannel},
          1);
      const StoredRows value({num_rows, num_kv_heads * value_dim, value_dim, block_rows, element},
                             2);
      const testing::Angles angles(300, head_dim / 2, false);
      const std::vector<float> query = random_numbers(num_heads * head_dim, 3);
      const KvSegment segment{
          .key = key.rows(), .value = value.rows(), .first_position = 20, .raw_key = true};
      DecodeAttentionParams params{.query = query.data(),
                                   .num_heads = num_heads,
                                   .num_kv_heads = num_kv_heads,
                                   .head_dim = head_dim,
                                   .value_dim = value_dim,
                                   .scale = 0.3f / std::sqrt(static_cast<float>(head_dim))};
      params.raw_keys.rope = angles.rope;
      const QuadHeads quads(params);
      std::vector<float> scores(static_cast<std::size_t>(quads.num_scores(num_rows)));
      std::vector<float> exact = scores;
      for (const auto& [first, last] : {std::pair(0, 250), {3, 64}, {39, 161}, {249, 250}}) {
        for (const bool special : {true, false}) {
          const testing::SpecialInstructions instructions(special);
          Partial actual(num_heads, value_dim), expected(num_heads, value_dim);
          AttentionPartial to = actual.view(), exact_to = expected.view();
          to.scores = {scores.data(), num_rows * kQuad};
          exact_to.scores = {exact.data(), num_rows * kQuad};
          decode_attention_partial(params, segment, first, last, to);
          decode_attention_partial_reference(params, segment, first, last, exact_to);
          EXPECT_TRUE(partials_close(actual, expected, 5e-4))
              << testing::to_string(element) << " " << head_dim;
        }
      }
      for (std::int64_t head = 0; head < num_heads; ++head) {
        for (std::int64_t row = 0; row < num_rows; ++row) {
          const auto i = static_cast<std::size_t>(quads.place(head, row, num_rows * kQuad));
          ASSERT_NEAR(scores[i], exact[i], 5e-4) << head << " " << row;
        }
      }
    }
  }
}

// Keys of fewer channels than values.
TEST(DecodeAttention, TakesKeysAndValuesOfDifferentWidths) {
  for (const KvElement element : {KvElement::kFloat32, KvElement::kBFloat16}) {
    for (const auto& [head_dim, value_dim] : {std::pair(77, 128), {11, 20}, {64, 96}, {32, 64}}) {
      const std::int64_t num_kv_heads = 2, num_heads = 6, num_rows = 150;
      const StoredRows key({num_rows, num_kv_heads * head_dim, head_dim, 64, element}, 1);
      const StoredRows value({num_rows, num_kv_heads * value_dim, value_dim, 64, element}, 2);
      const std::vector<float> query = random_numbers(num_heads * head_dim, 3);
      const DecodeAttentionParams params{.query = query.data(),
                                         .num_heads = num_heads,
                                         .num_kv_heads = num_kv_heads,
                                         .head_dim = head_dim,
                                         .value_dim = value_dim,
                                         .scale = 0.1f};
      const KvSegment segment{.key = key.rows(), .value = value.rows()};
      Partial actual(num_heads, value_dim), expected(num_heads, value_dim);
      decode_attention_partial(params, segment, 7, num_rows, actual.view());
      decode_attention_partial_reference(params, segment, 7, num_rows, expected.view());
      EXPECT_TRUE(partials_close(actual, expected, tolerance_of_values(element)))
          << head_dim << " " << value_dim;
    }
  }
}

TEST(DecodeAttention, SurvivesLargeScores) {
  const std::vector<float> query(16, 1000);
  std::vector<float> key, value = random_numbers(200 * 16, 4);
  for (int row = 0; row < 200; ++row) {
    key.insert(key.end(), 16, static_cast<float>(row) / 100 - 1);
  }
  const void* blocks[] = {key.data(), value.data()};
  const KvSegment segment{.key = {&blocks[0], 200, 200}, .value = {&blocks[1], 200, 200}};
  Partial partial(1, 16);
  decode_attention_partial(
      {.query = query.data(), .num_heads = 1, .num_kv_heads = 1, .head_dim = 16}, segment, 0, 200,
      partial.view());
  EXPECT_EQ(partial.sum[0], 1);
  EXPECT_EQ(partial.output, std::vector<float>(value.end() - 16, value.end()));
}

}  // namespace
}  // namespace kvc

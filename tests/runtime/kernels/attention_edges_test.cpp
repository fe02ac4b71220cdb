// Attention where ranges, tiles, blocks and vectors end: what is read, and whole sets of shapes of bfloat16 rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/fused_attention.h"
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
using testing::with_and_without_instructions;

constexpr std::int64_t kNumKvHeads = 2;

struct Range {
  std::int64_t first, last;
};

class AttendedRows : public ::testing::TestWithParam<KvElement> {
 protected:
  static constexpr std::int64_t kHeadDim = 64, kWidth = kNumKvHeads * kHeadDim, kNumRows = 130;

  // Keys and values in blocks of different sizes. Those that are not in the range are not numbers.
  struct Rows {
    Rows(KvElement element, const Range& range, unsigned seed)
        : key({kNumRows, kWidth, kHeadDim, 64, element, KvScales::kPerChannel}, seed),
          value({kNumRows, kWidth, kHeadDim, 96, element}, seed + 1) {
      value.spoil_others(range.first, range.last);
      if (!is_quantised(element)) {
        key.spoil_others(range.first, range.last);
      }
      segment = {.key = key.rows(), .value = value.rows(), .raw_key = is_quantised(element)};
    }

    StoredRows key, value;
    KvSegment segment;
  };

  DecodeAttentionParams params(const std::vector<float>& query) const {
    DecodeAttentionParams result{.query = query.data(),
                                 .num_heads = static_cast<std::int64_t>(query.size()) / kHeadDim,
                                 .num_kv_heads = kNumKvHeads,
                                 .head_dim = kHeadDim,
                                 .scale = 0.05f};
    result.raw_keys.rope = angles_.rope;
    return result;
  }

  static double tolerance() {
    return is_quantised(GetParam()) ? 1e-3 : 2 * tolerance_of_values(GetParam());
  }

 private:
  testing::Angles angles_{kNumRows, kHeadDim / 2, false};
};

// What lies before and behind is as good as not there, also in the same tile.
TEST_P(AttendedRows, AreAllThatIsRead) {
  for (const Range& range : {Range{0, 1}, {3, 70}, {63, 128}, {61, 66}, {129, 130}}) {
    const Rows rows(GetParam(), range, 1), others(GetParam(), range, 3);
    FusedSegment fused;
    fused.first = rows.segment;
    fused.second = others.segment;
    for (const std::int64_t num_heads : {2, 14, 24}) {
      const std::vector<float> query = random_bfloat16(num_heads * kHeadDim, 5);
      with_and_without_instructions([&] {
        Partial actual(num_heads, kHeadDim), expected(num_heads, kHeadDim);
        decode_attention_partial(params(query), rows.segment, range.first, range.last,
                                 actual.view());
        decode_attention_partial_reference(params(query), rows.segment, range.first, range.last,
                                           expected.view());
        EXPECT_TRUE(partials_close(actual, expected, tolerance())) << range.first;
        fused_attention_partial(params(query), fused, range.first, range.last, actual.view());
        fused_attention_partial_reference(params(query), fused, range.first, range.last,
                                          expected.view());
        EXPECT_TRUE(partials_close(actual, expected, tolerance())) << "fused " << range.first;
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, AttendedRows,
                         ::testing::Values(KvElement::kFloat32, KvElement::kBFloat16,
                                           KvElement::kFloat16, KvElement::kInt8, KvElement::kInt4,
                                           KvElement::kInt2));

// One vector and less, one and a half, more channels than a vector has numbers for eight rows, keys wider than values
// and the other way round; one, two and three quads of heads. Biases, a cap and kept scores at once.
TEST(Bfloat16Rows, AreReadInAllShapes) {
  constexpr std::int64_t kNumRows = 201;
  for (const auto& [head_dim, value_dim, heads_per_kv, block_rows] : {std::tuple(32, 32, 12, 64),
                                                                      {32, 160, 5, 7},
                                                                      {160, 32, 8, 100},
                                                                      {96, 96, 9, 1},
                                                                      {576, 512, 16, 64},
                                                                      {1056, 64, 4, 33},
                                                                      {2, 3, 12, 16},
                                                                      {16, 48, 1, 64}}) {
    const std::int64_t num_heads = kNumKvHeads * heads_per_kv;
    const StoredRows key(
        {kNumRows, kNumKvHeads * head_dim, head_dim, block_rows, KvElement::kBFloat16}, 1);
    const StoredRows value(
        {kNumRows, kNumKvHeads * value_dim, value_dim, block_rows, KvElement::kBFloat16}, 2);
    const std::vector<float> bias = random_numbers(kNumRows * kNumKvHeads, 4);
    const KvSegment segment{.key = key.rows(), .value = value.rows(), .bias = bias.data()};
    for (const std::vector<float>& query :
         {random_bfloat16(num_heads * head_dim, 3), random_numbers(num_heads * head_dim, 3)}) {
      const DecodeAttentionParams params{.query = query.data(),
                                         .num_heads = num_heads,
                                         .num_kv_heads = kNumKvHeads,
                                         .head_dim = head_dim,
                                         .value_dim = value_dim,
                                         .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                                         .softcap = 2};
      const QuadHeads quads(params);
      std::vector<float> scores(static_cast<std::size_t>(quads.num_scores(kNumRows)));
      std::vector<float> exact = scores;
      for (const Range& range : {Range{0, 201}, {1, 64}, {70, 137}}) {
        with_and_without_instructions([&] {
          Partial actual(num_heads, value_dim), expected(num_heads, value_dim);
          AttentionPartial to = actual.view(), exact_to = expected.view();
          to.scores = {scores.data(), kNumRows * kQuad};
          exact_to.scores = {exact.data(), kNumRows * kQuad};
          decode_attention_partial(params, segment, range.first, range.last, to);
          decode_attention_partial_reference(params, segment, range.first, range.last, exact_to);
          EXPECT_TRUE(partials_close(actual, expected, tolerance_of_values(KvElement::kBFloat16)))
              << head_dim << " and " << value_dim << " channels from " << range.first;
        });
      }
      for (std::int64_t head = 0; head < num_heads; ++head) {
        for (std::int64_t row = 0; row < kNumRows; ++row) {
          const auto i = static_cast<std::size_t>(quads.place(head, row, kNumRows * kQuad));
          ASSERT_NEAR(scores[i], exact[i], 5e-5) << head_dim << ", " << head << " " << row;
        }
      }
    }
  }
}

// Scores grow up to 2^79: one weight is one, the others are nothing.
TEST(Bfloat16Rows, SurviveLargeScores) {
  constexpr std::int64_t kHeadDim = 32, kNumRows = 130;
  const StoredRows value({kNumRows, kHeadDim, kHeadDim, kNumRows, KvElement::kBFloat16}, 1);
  std::vector<std::uint16_t> key;
  for (std::int64_t row = 0; row < kNumRows; ++row) {
    key.insert(key.end(), kHeadDim, static_cast<std::uint16_t>(row * 64 + 0x3F80));  // up to 2^65
  }
  const void* block = key.data();
  const KvSegment segment{.key = {&block, kNumRows, kNumRows, KvElement::kBFloat16},
                          .value = value.rows()};
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> query(kHeadDim, 1000 * sign);
    const DecodeAttentionParams params{
        .query = query.data(), .num_heads = 1, .num_kv_heads = 1, .head_dim = kHeadDim};
    Partial actual(1, kHeadDim), expected(1, kHeadDim);
    decode_attention_partial(params, segment, 0, kNumRows, actual.view());
    decode_attention_partial_reference(params, segment, 0, kNumRows, expected.view());
    EXPECT_EQ(actual.sum[0], 1);
    EXPECT_EQ(actual.output, expected.output);
  }
}

}  // namespace
}  // namespace kvc

#include "runtime/kernels/rank_space_attention.h"

#include <gtest/gtest.h>

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

// Element of latents and of keys, head_dim, rank, first channel of the values' part.
using Shape = std::tuple<KvElement, KvElement, std::int64_t, std::int64_t, std::int64_t>;

class RankSpaceAttention : public ::testing::TestWithParam<Shape> {};

TEST_P(RankSpaceAttention, MatchesReference) {
  const auto [element, key_element, head_dim, rank, first_channel] = GetParam();
  const std::int64_t num_kv_heads = 2, num_heads = 6, num_keys = 75, first_latent = 50;
  const StoredRows key({num_keys, num_kv_heads * head_dim, head_dim, num_keys, key_element}, 1);
  const std::int64_t width = first_channel + rank;
  const StoredRows latents({130, width, width, 64, element}, 2);
  const testing::Angles angles(700, head_dim / 2, false);
  std::vector<std::int32_t> positions;
  for (std::int32_t row = 0; row < num_keys; ++row) {
    positions.push_back(9 * row);
  }
  const std::vector<float> query = random_numbers(num_heads * head_dim, 3);
  const std::vector<float> bias = random_numbers(num_kv_heads * head_dim, 4);
  const std::vector<float> norm = random_numbers(head_dim, 5);
  RankSpaceSegment segment;
  segment.keys = {.key = key.rows(), .positions = positions.data(), .raw_key = true};
  segment.latents = latents.rows();
  segment.first_latent = first_latent;
  segment.width = width;
  segment.first_channel = first_channel;
  segment.rank = rank;
  DecodeAttentionParams params{.query = query.data(),
                               .num_heads = num_heads,
                               .num_kv_heads = num_kv_heads,
                               .head_dim = head_dim,
                               .scale = 0.5f / std::sqrt(static_cast<float>(head_dim))};
  params.raw_keys.rope = angles.rope;
  params.raw_keys.norm_epsilon = 1e-6f;
  for (const auto& [add, normalise] :
       {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    params.raw_keys.bias = add ? bias.data() : nullptr;
    params.raw_keys.norm = normalise ? norm.data() : nullptr;
    for (const auto& [first, last, special] :
         {std::tuple(0, 75, false), {0, 75, true}, {7, 70, true}, {74, 75, true}}) {
      const testing::SpecialInstructions instructions(special);
      Partial actual(num_heads, rank), expected(num_heads, rank);
      actual.clear();
      const int middle = (first + last) / 2;
      if (first < middle) {
        add_rank_space_attention(params, segment, first, middle, actual.view());
      }
      add_rank_space_attention(params, segment, middle, last, actual.view());
      rank_space_attention_partial_reference(params, segment, first, last, expected.view());
      EXPECT_TRUE(partials_close(actual, expected,
                                 is_quantised(element) ? 5e-4 : tolerance_of_values(element)))
          << first << " .. " << last;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RankSpaceAttention,
    ::testing::Combine(::testing::Values(KvElement::kFloat32, KvElement::kBFloat16,
                                         KvElement::kFloat16, KvElement::kInt8, KvElement::kInt4,
                                         KvElement::kInt2),
                       ::testing::Values(KvElement::kFloat32, KvElement::kBFloat16),
                       ::testing::Values(8, 64), ::testing::Values(32, 52, 160),
                       ::testing::Values(0, 96)));

// Two parts added to nothing are what they are combined.
TEST(RankSpaceAttention, PartsAddUpToTheWhole) {
  const StoredRows key({80, 64, 64, 80}, 1), value({80, 64, 64, 80}, 2);
  const std::vector<float> query = random_numbers(4 * 64, 3);
  const DecodeAttentionParams params{
      .query = query.data(), .num_heads = 4, .num_kv_heads = 1, .head_dim = 64};
  const KvSegment segment{.key = key.rows(), .value = value.rows()};
  Partial whole(4, 64), sum(4, 64);
  sum.clear();
  decode_attention_partial(params, segment, 0, 80, whole.view());
  for (const auto& [first, last] : {std::pair(0, 1), {1, 33}, {33, 80}}) {
    Partial part(4, 64);
    decode_attention_partial(params, segment, first, last, part.view());
    add_partial(part.view(), 4, 64, sum.view());
  }
  EXPECT_TRUE(partials_close(sum, whole, 1e-5));
  std::vector<float> output(4 * 64), log_sum(4);
  const AttentionPartial view = sum.view();
  combine_partials(&view, 1, 4, 64, output.data(), log_sum.data());
  for (std::size_t head = 0; head < 4; ++head) {
    EXPECT_NEAR(log_sum[head], whole.max[head] + std::log(whole.sum[head]), 1e-5);
  }
}

// Values of the identity projection are the latents: plain attention where one head has them all.
TEST(RankSpaceAttention, IsPlainAttentionOverValuesThatAreLatents) {
  const StoredRows key({80, 64, 64, 80}, 1), value({80, 64, 64, 80}, 2);
  const std::vector<float> query = random_numbers(4 * 64, 3);
  const DecodeAttentionParams params{
      .query = query.data(), .num_heads = 4, .num_kv_heads = 1, .head_dim = 64};
  RankSpaceSegment segment;
  segment.keys = {.key = key.rows()};
  segment.latents = value.rows();
  segment.width = segment.rank = 64;
  Partial latent(4, 64), plain(4, 64);
  latent.clear();
  add_rank_space_attention(params, segment, 0, 80, latent.view());
  decode_attention_partial(params, {.key = key.rows(), .value = value.rows()}, 0, 80, plain.view());
  EXPECT_EQ(latent.output, plain.output);
}

}  // namespace
}  // namespace kvc

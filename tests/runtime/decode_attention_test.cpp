#include "runtime/kernels/decode_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "runtime/attention/decode.h"
#include "runtime/kernels/cpu_features.h"
#include "tests/runtime/kernels/runtime_targets.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

// Element type, query heads, KV heads, head_dim.
using Shape = std::tuple<at::ScalarType, std::int64_t, std::int64_t, std::int64_t>;

class DecodeAttention : public ::testing::TestWithParam<Shape> {};

KvElement element_of(at::ScalarType type) {
  return type == at::kFloat      ? KvElement::kFloat32
         : type == at::kBFloat16 ? KvElement::kBFloat16
                                 : KvElement::kFloat16;
}

TEST_P(DecodeAttention, MatchesReference) {
  const auto [type, num_heads, num_kv_heads, head_dim] = GetParam();
  for (const auto& [num_tokens, softcap] :
       {std::pair(1, 0.0), {37, 0.0}, {64, 1.5}, {300, 0.0}, {300, 0.7}, {5000, 0.0}}) {
    const at::Tensor query = random_normal({num_heads, head_dim}, 1);
    const at::Tensor key = random_normal({num_tokens, num_kv_heads, head_dim}, 2).to(type);
    const at::Tensor value = random_normal({num_tokens, num_kv_heads, head_dim}, 3).to(type);
    const void* key_block = key.const_data_ptr();
    const void* value_block = value.const_data_ptr();
    const KvSegment segment{.key = {&key_block, num_tokens, num_tokens, element_of(type)},
                            .value = {&value_block, num_tokens, num_tokens, element_of(type)}};
    const DecodeAttentionParams params{.query = query.const_data_ptr<float>(),
                                       .num_heads = num_heads,
                                       .num_kv_heads = num_kv_heads,
                                       .head_dim = head_dim,
                                       .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                                       .softcap = static_cast<float>(softcap)};
    at::Tensor expected = at::empty({num_heads * head_dim}, at::kFloat);
    decode_attention_reference(params, &segment, 1, expected.mutable_data_ptr<float>());
    for (const bool special : {false, true}) {
      const testing::SpecialInstructions instructions(special);
      // Weights of bfloat16 values are then 2^-9 off at most, values less than 6 from their mean.
      const bool rounded = type == at::kBFloat16 && has_avx512_bf16();
      EXPECT_TRUE(tensors_close(decode_attention(query, key, value, {.softcap = softcap}), expected,
                                rounded ? 6 * 0x1p-9 : 1e-5))
          << num_tokens << " " << softcap;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecodeAttention,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::Values(8, 12), ::testing::Values(1, 2, 4),
                                            ::testing::Values(6, 8, 12, 32, 72, 128)));

TEST(DecodeAttentionKernel, SeesTheWindowOnlyAndScales) {
  const at::Tensor query = random_normal({4, 16}, 1);
  const at::Tensor key = random_normal({50, 2, 16}, 2), value = random_normal({50, 2, 16}, 3);
  const at::Tensor expected =
      decode_attention(query * 2, key.narrow(0, 41, 9), value.narrow(0, 41, 9));
  EXPECT_TRUE(tensors_close(decode_attention(query, key, value, {.window = 9, .scale = 0.5}),
                            expected, 1e-6));
}

TEST(DecodeAttentionKernel, SurvivesLargeScores) {
  const at::Tensor query = at::full({1, 16}, 1000.0), value = random_normal({200, 1, 16}, 4);
  const at::Tensor key =
      at::linspace(-1, 1, 200).view({200, 1, 1}).expand({200, 1, 16}).contiguous();
  EXPECT_TRUE(tensors_close(decode_attention(query, key, value), value[199][0], 1e-6));
}

// Rows that lie in many ranges, long, short and empty ones, however threads share them.
TEST(DecodeAttentionKernel, RangesAreOneSoftmax) {
  const at::Tensor query = random_normal({4, 16}, 1);
  const at::Tensor key = random_normal({9000, 2, 16}, 2), value = random_normal({9000, 2, 16}, 3);
  const void* key_block = key.const_data_ptr();
  const void* value_block = value.const_data_ptr();
  const KvSegment segment{.key = {&key_block, 9000, 9000, KvElement::kFloat32},
                          .value = {&value_block, 9000, 9000, KvElement::kFloat32}};
  const std::vector<std::vector<std::int64_t>> all_ends{
      {9000}, {4, 8000, 8000, 8001, 9000}, {0, 0, 1, 2, 3, 4, 9000}, {8990, 8995, 9000, 9000}};
  const at::Tensor expected = decode_attention(query, key, value);
  const int threads = at::get_num_threads();
  for (const std::vector<std::int64_t>& ends : all_ends) {
    std::vector<RowRange> ranges;
    std::int64_t first = 0;
    for (const std::int64_t last : ends) {
      ranges.push_back({segment, first, last});
      first = last;
    }
    for (const int count : {1, 2, 5}) {
      at::set_num_threads(count);
      EXPECT_TRUE(
          tensors_close(decode_attention(query, 2, ranges, {}).flatten(), expected.flatten(), 1e-5))
          << ends.size() << " ranges, threads: " << count;
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace kvc

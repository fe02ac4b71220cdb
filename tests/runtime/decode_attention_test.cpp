#include "runtime/kernels/decode_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "runtime/decode.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

// Two tokens, one head: scores 0 and ln 3, so the second value counts three times as much.
TEST(DecodeAttentionReference, WeighsValuesByTheSoftmaxOfScores) {
  const float query[] = {1, 0}, key[] = {0, 5, std::log(3.0f), 7}, value[] = {1, 2, 5, -2};
  const DecodeAttentionParams params{.query = query,
                                     .key = key,
                                     .value = value,
                                     .num_tokens = 2,
                                     .num_heads = 1,
                                     .num_kv_heads = 1,
                                     .head_dim = 2};
  float output[2];
  decode_attention_reference(params, output);
  EXPECT_NEAR(output[0], 4, 1e-6);
  EXPECT_NEAR(output[1], -1, 1e-6);
}

TEST(DecodeAttentionReference, QueryHeadsShareAKvHeadInOrder) {
  const float query[] = {0, 0, 0, 0}, key[] = {1, 1}, value[] = {3, 8};
  const DecodeAttentionParams params{.query = query,
                                     .key = key,
                                     .value = value,
                                     .num_tokens = 1,
                                     .num_heads = 4,
                                     .num_kv_heads = 2,
                                     .head_dim = 1};
  float output[4];
  decode_attention_reference(params, output);
  EXPECT_EQ((std::vector<float>(output, output + 4)), (std::vector<float>{3, 3, 8, 8}));
}

// Scores 0 and a large one that the cap leaves at ln 3.
TEST(DecodeAttentionReference, CapsScores) {
  const float query[] = {1}, key[] = {0, 1000}, value[] = {1, 5};
  const DecodeAttentionParams params{.query = query,
                                     .key = key,
                                     .value = value,
                                     .num_tokens = 2,
                                     .num_heads = 1,
                                     .num_kv_heads = 1,
                                     .head_dim = 1,
                                     .softcap = std::log(3.0f)};
  float output = 0;
  decode_attention_reference(params, &output);
  EXPECT_NEAR(output, 4, 1e-6);
}

TEST(DecodeAttentionReference, ReadsHalfPrecision) {
  const float query[] = {1};
  const std::uint16_t key[] = {0, 0};
  const std::uint16_t half[] = {0x3C00, 0xC000}, brain[] = {0x3F80, 0xC000};  // 1 and -2
  DecodeAttentionParams params{.query = query,
                               .key = key,
                               .value = half,
                               .element = KvElement::kFloat16,
                               .num_tokens = 2,
                               .num_heads = 1,
                               .num_kv_heads = 1,
                               .head_dim = 1};
  float output = 0;
  decode_attention_reference(params, &output);
  EXPECT_EQ(output, -0.5f);
  params.value = brain;
  params.element = KvElement::kBFloat16;
  decode_attention_reference(params, &output);
  EXPECT_EQ(output, -0.5f);
}

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
    const DecodeAttentionParams params{.query = query.const_data_ptr<float>(),
                                       .key = key.const_data_ptr(),
                                       .value = value.const_data_ptr(),
                                       .element = element_of(type),
                                       .num_tokens = num_tokens,
                                       .num_heads = num_heads,
                                       .num_kv_heads = num_kv_heads,
                                       .head_dim = head_dim,
                                       .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                                       .softcap = static_cast<float>(softcap)};
    at::Tensor expected = at::empty({num_heads * head_dim}, at::kFloat);
    decode_attention_reference(params, expected.mutable_data_ptr<float>());
    EXPECT_TRUE(
        tensors_close(decode_attention(query, key, value, {.softcap = softcap}), expected, 1e-5))
        << num_tokens << " " << softcap;
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

}  // namespace
}  // namespace kvc

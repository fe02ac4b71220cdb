#include "runtime/kernels/decode_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc {
namespace {

using testing::Partial;
using testing::partials_close;
using testing::random_numbers;
using testing::StoredRows;

// Element type, query heads per KV head, head_dim, rows of a block.
using Shape = std::tuple<KvElement, std::int64_t, std::int64_t, std::int64_t>;

class DecodeAttentionRows : public ::testing::TestWithParam<Shape> {};

TEST_P(DecodeAttentionRows, MatchesReference) {
  const auto [element, heads_per_kv, head_dim, block_rows] = GetParam();
  const std::int64_t num_kv_heads = 2, num_heads = heads_per_kv * num_kv_heads, num_rows = 300;
  const StoredRows key({num_rows, num_kv_heads * head_dim, head_dim, block_rows, element}, 1);
  const StoredRows value({num_rows, num_kv_heads * head_dim, head_dim, block_rows, element}, 2);
  const std::vector<float> query = random_numbers(num_heads * head_dim, 3);
  const KvSegment segment{.key = key.rows(), .value = value.rows()};
  for (const float softcap : {0.0f, 1.5f}) {
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
      EXPECT_TRUE(partials_close(actual, expected, 1e-5)) << first << " .. " << last;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecodeAttentionRows,
                         ::testing::Combine(::testing::Values(KvElement::kFloat32,
                                                              KvElement::kBFloat16,
                                                              KvElement::kFloat16),
                                            ::testing::Values(1, 2, 3, 4, 7, 8),
                                            ::testing::Values(6, 7, 8, 20, 64, 72, 96, 128, 256),
                                            ::testing::Values(16, 64, 100, 512)));

}  // namespace
}  // namespace kvc

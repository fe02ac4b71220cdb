// Every instruction set that this machine has, not only the best.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/fused_attention.h"
#include "tests/runtime/kernels/kernel_inputs.h"
#include "tests/runtime/kernels/runtime_targets.h"

namespace kvc {
namespace {

using testing::Partial;
using testing::partials_close;
using testing::random_numbers;
using testing::StoredRows;

class EveryTarget : public ::testing::TestWithParam<KvElement> {};

TEST_P(EveryTarget, AttendsAsTheReferenceDoes) {
  const KvElement element = GetParam();
  for (const std::int64_t head_dim : {24, 64, 128}) {
    const std::int64_t width = 2 * head_dim, num_heads = 6;
    const StoredRows key({90, width, head_dim, 64, element, KvScales::kPerChannel}, 1);
    const StoredRows value({90, width, head_dim, 64, element}, 2);
    const testing::Angles angles(200, head_dim / 2, false);
    const std::vector<float> query = random_numbers(num_heads * head_dim, 3);
    DecodeAttentionParams params{.query = query.data(),
                                 .num_heads = num_heads,
                                 .num_kv_heads = 2,
                                 .head_dim = head_dim,
                                 .scale = 0.5f / std::sqrt(static_cast<float>(head_dim))};
    params.raw_keys.rope = angles.rope;
    const KvSegment segment{.key = key.rows(),
                            .value = value.rows(),
                            .first_position = 70,
                            .raw_key = is_quantised(element)};
    FusedSegment fused;
    fused.first = fused.second = segment;
    Partial expected(num_heads, head_dim), expected_fused(num_heads, head_dim);
    decode_attention_partial_reference(params, segment, 3, 90, expected.view());
    fused_attention_partial_reference(params, fused, 3, 90, expected_fused.view());
    testing::with_best_and_every_target([&](bool) {
      Partial actual(num_heads, head_dim), actual_fused(num_heads, head_dim);
      decode_attention_partial(params, segment, 3, 90, actual.view());
      fused_attention_partial(params, fused, 3, 90, actual_fused.view());
      const double tolerance =
          std::max(is_quantised(element) ? 1e-3 : 2e-5, testing::tolerance_of_values(element));
      EXPECT_TRUE(partials_close(actual, expected, tolerance));
      EXPECT_TRUE(partials_close(actual_fused, expected_fused, tolerance));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, EveryTarget,
                         ::testing::Values(KvElement::kFloat32, KvElement::kBFloat16,
                                           KvElement::kFloat16, KvElement::kInt8, KvElement::kInt4,
                                           KvElement::kInt2));

}  // namespace
}  // namespace kvc

#include "runtime/kernels/coded_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "tests/runtime/kernels/coded_inputs.h"
#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc {
namespace {

// What a weight stands for is near F * step: to 16 bits, or where the codes' own error hides it.
TEST(CodedKeys, AreTheDecoderTimesTheSteps) {
  const std::int64_t head_dim = 24, count = 40;
  const TileLayout layout = testing::layout_of({0, 0, 10, 20, 0, 0, 0, 10}, false);
  const std::vector<float> decoder = testing::random_numbers(count * head_dim, 1);
  std::vector<float> steps(count, 0.1f);
  const std::vector<float> mean(static_cast<std::size_t>(head_dim), 0.0f);
  const CodedKeyRows rows(layout, decoder.data(), count, head_dim, steps.data(), mean.data());
  const IntegerRows& integers = rows.bases().front();
  EXPECT_GE(integers.num_wide(), 8);
  EXPECT_LT(integers.num_wide(), count);
  double added = 0, made = 0;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    for (std::int64_t c = 0; c < count; ++c) {
      const double weight = double{decoder[static_cast<std::size_t>(d * count + c)]} * 0.1f;
      const double error = rows.weight(d, c) - weight;
      if (c < integers.num_wide()) {
        EXPECT_LE(std::fabs(error), 0.51 * integers.scale(d));
      } else {
        const int bits = c < 30 ? 4 : 3;
        added += error * error * std::exp2(2 * bits) / 32;
      }
      made += weight * weight / 12;
    }
  }
  EXPECT_LE(added, IntegerRows::kAddedDistortion * made);
}

// A head of two channels is a pair with two coefficients only where every pair has a basis of its own.
TEST(CodedKeys, OneBasisOfTwoChannelsIsNoPair) {
  const TileLayout layout = testing::layout_of({0, 0, 0, 0, 0, 0, 0, 4}, false);
  const std::vector<float> decoder = {1, 2, 3, 4, 5, 6, 7, 8}, steps(4, 1), mean(2, 0);
  const CodedKeyRows rows(layout, decoder.data(), 4, 2, steps.data(), mean.data());
  EXPECT_EQ(rows.form(), KeyForm::kBases);
  EXPECT_TRUE(rows.pairs().empty());
  for (std::int64_t d = 0; d < 2; ++d) {
    for (std::int64_t c = 0; c < 4; ++c) {
      EXPECT_NEAR(rows.weight(d, c), decoder[static_cast<std::size_t>(4 * d + c)], 0.05);
    }
  }
}

// With as many wide codes as heads of 512 channels have, all of them at their largest.
TEST(CodedKeys, SumOverCodesWithin32Bits) {
  const std::int64_t head_dim = 8, count = 1024;
  const TileLayout layout = testing::layout_of({0, 0, 0, 0, 0, 0, 0, count}, false);
  std::vector<float> decoder(static_cast<std::size_t>(head_dim * count), 0.001f);
  std::fill(decoder.begin() + count, decoder.begin() + 2 * count, -0.0005f);
  const std::vector<float> steps(static_cast<std::size_t>(count), 1.0f);
  const std::vector<float> mean(static_cast<std::size_t>(head_dim), 0.0f);
  const CodedKeyRows rows(layout, decoder.data(), count, head_dim, steps.data(), mean.data());
  const IntegerRows& integers = rows.bases().front();
  for (std::int64_t d = 0; d < 2; ++d) {
    std::int64_t sum = 0;
    for (std::int64_t c = 0; c < count; ++c) {
      sum += std::int64_t{255} * integers.integer(d, c);
    }
    EXPECT_LE(std::abs(sum), std::numeric_limits<std::int32_t>::max());
    EXPECT_NEAR(integers.scale(d) * static_cast<double>(sum), d == 0 ? 261.12 : -130.56, 0.1);
  }
  std::vector<std::uint8_t> tile(static_cast<std::size_t>(layout.bytes()), 255);
  const void* block = tile.data();
  const CodeTiles all{&block, 1, 1, layout};
  const CodedSegment segment{.keys = all, .values = all, .rows = &rows};
  const std::vector<float> query(static_cast<std::size_t>(head_dim), 1.0f);
  DecodeAttentionParams params{.query = query.data(),
                               .num_heads = 1,
                               .num_kv_heads = 1,
                               .head_dim = head_dim,
                               .scale = 0.001f};
  testing::Partial expected(1, count + 1), actual(1, count + 1);
  coded_attention_partial_reference(params, segment, 0, kTileTokens, expected.view());
  coded_attention_partial(params, segment, 0, kTileTokens, actual.view());
  EXPECT_NEAR(actual.max[0], expected.max[0], 1e-3);
}

}  // namespace
}  // namespace kvc

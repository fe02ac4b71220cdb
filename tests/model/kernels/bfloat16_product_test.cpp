#include "model/kernels/bfloat16_product.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <tuple>
#include <vector>

#include "model/kernels/causal_attention.h"
#include "model/kernels/element.h"
#include "tests/model/kernels/random_values.h"

namespace kvc {
namespace {

using Numbers = std::vector<std::uint16_t>;

Numbers random_bfloat16(std::int64_t count, unsigned seed) {
  Numbers numbers;
  for (const float x : testing::random_values(count, seed)) {
    numbers.push_back(bfloat16_of(x));
  }
  return numbers;
}

// Rows, columns, channels.
using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

class Bfloat16ProductKernel : public ::testing::TestWithParam<Shape> {
 protected:
  static constexpr std::int64_t kGap = 6;  // between rows of x and of y
  static constexpr std::uint16_t kUntouched = 0x1234;

  Bfloat16ProductKernel() {
    const auto [rows, columns, in] = GetParam();
    x_ = random_bfloat16(rows * (in + kGap), 1);
    weight_ = random_bfloat16(columns * in, 2);
    bias_ = testing::random_values(columns, 3);
  }

  template <class Multiply>
  Numbers multiply(const Multiply& by, bool with_bias) {
    const auto [rows, columns, in] = GetParam();
    Numbers y(static_cast<std::size_t>(rows * (columns + kGap)), kUntouched);
    by(Bfloat16Product{.x = x_.data(),
                       .x_stride = in + kGap,
                       .num_rows = rows,
                       .in = in,
                       .weight = weight_.data(),
                       .columns = columns,
                       .bias = with_bias ? bias_.data() : nullptr,
                       .y = y.data(),
                       .y_stride = columns + kGap});
    return y;
  }

  Numbers x_, weight_;
  std::vector<float> bias_;
};

TEST_P(Bfloat16ProductKernel, MatchesReference) {
  const std::int64_t columns = std::get<1>(GetParam());
  for (const bool with_bias : {false, true}) {
    const Numbers actual = multiply(bfloat16_product, with_bias);
    const Numbers expected = multiply(bfloat16_product_reference, with_bias);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (static_cast<std::int64_t>(i) % (columns + kGap) >= columns) {
        ASSERT_EQ(actual[i], kUntouched);
        continue;
      }
      const float x = float_of_bfloat16(actual[i]), y = float_of_bfloat16(expected[i]);
      ASSERT_NEAR(x, y, 0x1p-8 * std::abs(y) + 1e-3) << i;  // sums differ in float32, rounding once
    }
  }
}

TEST_P(Bfloat16ProductKernel, WithoutTheInstructionsIsTheReference) {
  allow_avx512_bf16(false);
  const Numbers actual = multiply(bfloat16_product, true);
  allow_avx512_bf16(true);
  EXPECT_EQ(actual, multiply(bfloat16_product_reference, true));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Bfloat16ProductKernel,
                         ::testing::Values(Shape{1, 1, 2}, Shape{6, 64, 64}, Shape{37, 17, 130},
                                           Shape{13, 64, 1026}, Shape{12, 48, 2500},
                                           Shape{5, 33, 8}, Shape{7, 3, 9}));

}  // namespace
}  // namespace kvc

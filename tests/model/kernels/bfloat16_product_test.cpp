#include "model/kernels/bfloat16_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <vector>

#include "model/kernels/cpu_features.h"
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

// Rows, outputs, channels.
using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

class Bfloat16ProductKernel : public ::testing::TestWithParam<Shape> {
 protected:
  static constexpr std::int64_t kGap = 6;  // between rows of x and of y
  static constexpr std::uint16_t kUntouched = 0x1234;

  Bfloat16ProductKernel() {
    const auto [rows, out, in] = GetParam();
    x_ = random_bfloat16(rows * (in + kGap), 1);
    weight_ = random_bfloat16(out * in, 2);
    bias_ = testing::random_values(out, 3);
    const std::vector<float> weights = testing::random_values(out * in, 2);
    codes_.resize(static_cast<std::size_t>(out * int8_groups(in) * kInt8Group));
    scales_.resize(static_cast<std::size_t>(out * int8_groups(in)));
    for (std::int64_t i = 0; i < out; ++i) {
      quantize_int8_row(weights.data() + i * in, in,
                        codes_.data() + i * int8_groups(in) * kInt8Group,
                        scales_.data() + i * int8_groups(in));
    }
  }

  Bfloat16Product product(bool with_bias, bool is_int8) const {
    const auto [rows, out, in] = GetParam();
    return {.x = x_.data(),
            .x_stride = in + kGap,
            .num_rows = rows,
            .in = in,
            .weight = is_int8 ? nullptr : weight_.data(),
            .int8 = {codes_.data(), scales_.data(), out, in},
            .out = out,
            .bias = with_bias ? bias_.data() : nullptr,
            .y = nullptr,
            .y_stride = out + kGap};
  }

  template <class Multiply>
  static Numbers multiply(const Multiply& by, Bfloat16Product product) {
    Numbers y(static_cast<std::size_t>(product.num_rows * product.y_stride), kUntouched);
    product.y = y.data();
    by(product);
    return y;
  }

  Numbers x_, weight_, scales_;
  std::vector<std::int8_t> codes_;
  std::vector<float> bias_;
};

TEST_P(Bfloat16ProductKernel, MatchesReference) {
  const std::int64_t out = std::get<1>(GetParam());
  for (const bool with_bias : {false, true}) {
    for (const bool is_int8 : {false, true}) {
      const Numbers actual = multiply(bfloat16_product, product(with_bias, is_int8));
      const Numbers expected = multiply(bfloat16_product_reference, product(with_bias, is_int8));
      for (std::size_t i = 0; i < actual.size(); ++i) {
        if (static_cast<std::int64_t>(i) % (out + kGap) >= out) {
          ASSERT_EQ(actual[i], kUntouched);
          continue;
        }
        const float x = float_of_bfloat16(actual[i]), y = float_of_bfloat16(expected[i]);
        // Sums differ in float32: one between two numbers rounds to either.
        ASSERT_NEAR(x, y, 0x1p-7 * std::abs(y) + 1e-3) << i << (is_int8 ? " of int8" : "");
      }
    }
  }
}

// Blocks of rows in order one by one, tasks of one block each, the last output's first, in memory of any content.
TEST_P(Bfloat16ProductKernel, DoesNotDependOnTheTasks) {
  static constexpr std::uint32_t kNotNumbers = 0xFFFFFFFF;
  const auto in_tasks = [](const Bfloat16Product& product) {
    if (!bfloat16_product_is_fast(product.in)) {
      return bfloat16_product(product);
    }
    std::vector<std::uint32_t> ordered(static_cast<std::size_t>(ordered_size(product)),
                                       kNotNumbers);
    std::vector<std::uint32_t> memory(static_cast<std::size_t>(task_memory_size(product, 1)),
                                      kNotNumbers);
    const std::int64_t blocks = product_blocks(product.num_rows);
    for (std::int64_t block = blocks - 1; block >= 0; --block) {
      order_rows(product, block, block + 1, ordered.data());
    }
    const std::int64_t panels = (product.out + kProductColumns - 1) / kProductColumns;
    for (std::int64_t panel = panels - 1; panel >= 0; --panel) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        multiply_task(product, {panel * kProductColumns, block, block + 1, /*next_output=*/0},
                      ordered.data(), memory.data());
      }
    }
  };
  for (const bool is_int8 : {false, true}) {
    EXPECT_EQ(multiply(in_tasks, product(true, is_int8)),
              multiply(bfloat16_product, product(true, is_int8)));
  }
}

// As pieces of a prompt have it.
TEST_P(Bfloat16ProductKernel, RowsDoNotDependOnOtherRows) {
  const Bfloat16Product all = product(true, false);
  const Numbers together = multiply(bfloat16_product, all);
  for (std::int64_t row = 0; row < all.num_rows; ++row) {
    Bfloat16Product one = all;
    one.x += row * all.x_stride;
    one.num_rows = 1;
    const Numbers alone = multiply(bfloat16_product, one);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + row * all.y_stride))
        << row;
  }
}

TEST_P(Bfloat16ProductKernel, WithoutTheInstructionsIsTheReference) {
  allow_avx512_bf16(false);
  const Numbers actual = multiply(bfloat16_product, product(true, true));
  allow_avx512_bf16(true);
  EXPECT_EQ(actual, multiply(bfloat16_product_reference, product(true, true)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Bfloat16ProductKernel,
                         ::testing::Values(Shape{1, 1, 2}, Shape{6, 64, 64}, Shape{37, 17, 130},
                                           Shape{13, 64, 1026}, Shape{12, 48, 2500},
                                           Shape{5, 33, 8}, Shape{7, 3, 9}, Shape{38, 200, 96},
                                           Shape{100, 130, 1100}, Shape{9, 5, 0}, Shape{0, 5, 8},
                                           Shape{9, 0, 8}));

}  // namespace
}  // namespace kvc

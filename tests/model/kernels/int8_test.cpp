#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "model/kernels/element.h"
#include "model/kernels/int8_product.h"
#include "tests/model/kernels/product_checks.h"
#include "tests/model/kernels/random_values.h"

namespace kvc {
namespace {

using testing::expect_products_match;
using testing::expect_range_changes_nothing;
using testing::on_every_target;
using testing::random_values;

TEST(Float16, EveryNumberSurvives) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7fff) > 0x7c00) {
      EXPECT_TRUE(std::isnan(float_of_float16(half)));
    } else {
      ASSERT_EQ(float16_of(float_of_float16(half)), half);
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(float_of_float16(0x3c00), 1);
  EXPECT_EQ(float_of_float16(0x0001), 0x1p-24f);
  EXPECT_EQ(float_of_float16(0xfbff), -65504);
  EXPECT_EQ(float16_of(1 + 0x1p-11f), 0x3c00);      // halfway: to even
  EXPECT_EQ(float16_of(1 + 3 * 0x1p-11f), 0x3c02);  // likewise
  EXPECT_EQ(float16_of(1 + 1.1f * 0x1p-11f), 0x3c01);
  EXPECT_EQ(float16_of(0x1p-14f - 0x1p-26f), 0x0400);  // up to the smallest that is normal
  EXPECT_EQ(float16_of(65519), 0x7bff);
  EXPECT_EQ(float16_of(65520), 0x7c00);
}

struct Row {
  explicit Row(const std::vector<float>& weights)
      : codes(static_cast<std::size_t>(int8_groups(size(weights)) * kInt8Group), 99),
        scales(static_cast<std::size_t>(int8_groups(size(weights)))),
        fits(quantize_int8_row(weights.data(), size(weights), codes.data(), scales.data())) {}
  static std::int64_t size(const std::vector<float>& v) {
    return static_cast<std::int64_t>(v.size());
  }
  std::vector<std::int8_t> codes;
  std::vector<std::uint16_t> scales;
  bool fits;
};

TEST(QuantizeInt8Row, ScalesGroupsAndPadsWithZeros) {
  std::vector<float> weights(34);
  weights[0] = -254, weights[1] = 127, weights[2] = 5;  // 2.5 scales: to even
  weights[32] = 0.5f * 127, weights[33] = 0.75f;        // the second group: 1.5 scales
  const Row row(weights);
  EXPECT_TRUE(row.fits);
  EXPECT_THAT(row.scales, ::testing::ElementsAre(0x4000, 0x3800));
  std::vector<std::int8_t> expected(64);
  expected[0] = -127, expected[1] = 64, expected[2] = 2, expected[32] = 127, expected[33] = 2;
  EXPECT_EQ(row.codes, expected);
}

TEST(QuantizeInt8Row, IsWithinHalfAScale) {
  const std::vector<float> weights = random_values(320, 5);
  const Row row(weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float scale = float_of_float16(row.scales[i / kInt8Group]);
    // Plus what rounding a scale down cuts off the largest weight.
    ASSERT_LE(std::abs(scale * row.codes[i] - weights[i]), 0.5f * scale + 127 * scale * 0x1p-11f);
  }
}

TEST(QuantizeInt8Row, RefusesWhatHasNoScale) {
  EXPECT_FALSE(Row({1, NAN}).fits);
  EXPECT_FALSE(Row({-INFINITY}).fits);
  EXPECT_FALSE(Row({1e7f}).fits);
  EXPECT_TRUE(Row({8e6f}).fits);
  const Row zeros({0, -0.0f, 1e-12f});
  EXPECT_TRUE(zeros.fits);
  EXPECT_THAT(zeros.codes, ::testing::Each(0));
}

TEST(QuantizeInt16Row, IsWithinHalfAScale) {
  const std::vector<float> x = random_values(70, 6);
  std::vector<std::int16_t> codes(96, 99);
  std::vector<float> scales(3);
  quantize_int16_row(x.data(), 70, codes.data(), scales.data());
  for (std::size_t i = 0; i < 96; ++i) {
    const float scale = scales[i / kInt8Group];
    ASSERT_NEAR(static_cast<float>(codes[i]) * scale, i < 70 ? x[i] : 0, 0.501f * scale);
  }
}

struct Product {
  Product(std::int64_t num_rows, std::int64_t num_out, std::int64_t num_in)
      : groups(int8_groups(num_in)) {
    for (std::int64_t row = 0; row < num_out; ++row) {
      const Row quantized(random_values(num_in, static_cast<unsigned>(row)));
      codes.insert(codes.end(), quantized.codes.begin(), quantized.codes.end());
      scales.insert(scales.end(), quantized.scales.begin(), quantized.scales.end());
    }
    x.resize(static_cast<std::size_t>(num_rows * groups * kInt8Group));
    x_scales.resize(static_cast<std::size_t>(num_rows * groups));
    for (std::int64_t row = 0; row < num_rows; ++row) {
      quantize_int16_row(random_values(num_in, static_cast<unsigned>(100 + row)).data(), num_in,
                         x.data() + row * groups * kInt8Group, x_scales.data() + row * groups);
    }
    params = {{codes.data(), scales.data(), num_out, num_in}, x.data(), x_scales.data(), num_rows};
  }

  std::int64_t groups;
  std::vector<std::int8_t> codes;
  std::vector<std::uint16_t> scales;
  std::vector<std::int16_t> x;
  std::vector<float> x_scales;
  Int8ProductParams params;
};

TEST(Int8ProductReference, SumsScaledProducts) {
  std::vector<std::int8_t> codes(64);
  codes[0] = 3, codes[32] = -2;
  const std::vector<std::uint16_t> scales = {0x3800, 0x4000};  // 0.5, 2
  std::vector<std::int16_t> x(64);
  x[0] = 100, x[32] = 7;
  const std::vector<float> x_scales = {0.25, 1};
  float y = 0;
  int8_product_reference({{codes.data(), scales.data(), 1, 33}, x.data(), x_scales.data(), 1}, 0, 1,
                         &y);
  EXPECT_EQ(y, 3 * 0.5f * 100 * 0.25f - 2 * 2 * 7);
}

class Int8Product : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Int8Product, MatchesReference) {
  const auto [num_rows, num_in] = GetParam();
  const double tolerance = 1e-5 * std::sqrt(num_in);
  for (const std::int64_t num_out : {1, 4, 7, 37}) {
    const Product product(num_rows, num_out, num_in);
    expect_products_match(int8_product, int8_product_reference, product.params, num_out, tolerance);
  }
}

TEST_P(Int8Product, DoesNotDependOnTheRange) {
  const auto [num_rows, num_in] = GetParam();
  const Product product(num_rows, 37, num_in);
  expect_range_changes_nothing(int8_product, product.params, 37);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Int8Product,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8),
                                            ::testing::Values(1, 32, 72, 256, 300, 1000)));

TEST(DequantizeInt8, MatchesReference) {
  for (const std::int64_t num_in : {5, 32, 72, 300}) {
    const Product product(1, 9, num_in);
    const Int8Matrix& matrix = product.params.weight;
    const auto count = static_cast<std::size_t>(4 * num_in);
    std::vector<float> expected(count), actual(count);
    dequantize_int8_reference(matrix, 3, 7, WeightElement::kFloat32, expected.data());
    on_every_target([&] {
      dequantize_int8(matrix, 3, 7, WeightElement::kFloat32, actual.data());
      EXPECT_EQ(actual, expected);
    });
    for (const WeightElement type : {WeightElement::kBFloat16, WeightElement::kFloat16}) {
      std::vector<std::uint16_t> expected_bits(count), actual_bits(count);
      dequantize_int8_reference(matrix, 3, 7, type, expected_bits.data());
      on_every_target([&] {
        dequantize_int8(matrix, 3, 7, type, actual_bits.data());
        EXPECT_EQ(actual_bits, expected_bits);
      });
    }
  }
}

}  // namespace
}  // namespace kvc

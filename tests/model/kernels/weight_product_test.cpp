#include "model/kernels/weight_product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "model/kernels/element.h"
#include "tests/model/kernels/product_checks.h"
#include "tests/model/kernels/random_values.h"

namespace kvc {
namespace {

using testing::expect_products_match;
using testing::expect_range_changes_nothing;
using testing::random_values;
using testing::run_product;

struct Product {
  Product(WeightElement type, std::int64_t num_rows, std::int64_t num_out, std::int64_t num_in)
      : wide(random_values(num_out * num_in, 1)) {
    for (const float value : wide) {
      narrow.push_back(type == WeightElement::kBFloat16 ? bfloat16_of(value) : float16_of(value));
    }
    const std::int64_t stride = padded_channels(num_in) + 3;
    x = random_values(num_rows * stride, 2);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      for (std::int64_t channel = num_in; channel < padded_channels(num_in); ++channel) {
        x[static_cast<std::size_t>(row * stride + channel)] = 0;
      }
    }
    const void* weight = narrow.data();
    if (type == WeightElement::kFloat32) {
      weight = wide.data();
    }
    params = {weight, type, num_out, num_in, x.data(), stride, num_rows};
  }

  std::vector<float> wide, x;
  std::vector<std::uint16_t> narrow;
  WeightProductParams params;
};

TEST(WeightProductReference, SumsProducts) {
  const std::vector<float> weight = {1, 2, 3, -1, 0, 0.5};
  std::vector<float> x(64);
  x = {};
  x.resize(64);
  x[0] = 10, x[1] = 100, x[2] = 1000;
  x[32] = 1, x[33] = 1, x[34] = 2;
  const WeightProductParams params{weight.data(), WeightElement::kFloat32, 2, 3, x.data(), 32, 2};
  std::vector<float> y(4);
  weight_product_reference(params, 0, 2, y.data());
  EXPECT_THAT(y, ::testing::ElementsAre(3210, 490, 9, 0));
  weight_product_reference(params, 1, 2, y.data());
  EXPECT_THAT(y, ::testing::ElementsAre(490, 0, 9, 0));
}

class WeightProduct : public ::testing::TestWithParam<std::tuple<WeightElement, int, int>> {};

TEST_P(WeightProduct, MatchesReference) {
  const auto [type, num_rows, num_in] = GetParam();
  const double tolerance = 1e-5 * std::sqrt(num_in);
  for (const std::int64_t num_out : {1, 4, 7, 37}) {
    const Product product(type, num_rows, num_out, num_in);
    expect_products_match(weight_product, weight_product_reference, product.params, num_out,
                          tolerance);
  }
}

TEST_P(WeightProduct, DoesNotDependOnTheRange) {
  const auto [type, num_rows, num_in] = GetParam();
  const Product product(type, num_rows, 37, num_in);
  expect_range_changes_nothing(weight_product, product.params, 37);
}

INSTANTIATE_TEST_SUITE_P(Sizes, WeightProduct,
                         ::testing::Combine(::testing::Values(WeightElement::kFloat32,
                                                              WeightElement::kBFloat16,
                                                              WeightElement::kFloat16),
                                            ::testing::Values(1, 2, 3, 4, 5, 8),
                                            ::testing::Values(1, 16, 33, 72, 256, 300)));

// What pads the rows must not meet what follows the weights: 0 * NaN is NaN.
TEST(WeightProduct, DoesNotReadPastARow) {
  Product product(WeightElement::kFloat32, 1, 5, 20);
  for (std::size_t i = 20; i < product.wide.size(); ++i) {
    product.wide[i] = NAN;
  }
  const std::vector<float> y = run_product(weight_product, product.params, 0, 5);
  EXPECT_FALSE(std::isnan(y[0]));
  EXPECT_TRUE(std::isnan(y[1]));
}

}  // namespace
}  // namespace kvc

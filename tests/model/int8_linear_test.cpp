#include "model/int8_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "model/kernels/int8_matrix.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

Linear quantized(const at::Tensor& weight) {
  Linear result = empty_int8(weight.sizes().vec());
  const std::int64_t groups = result.scales.size(1);
  for (std::int64_t row = 0; row < weight.size(0); ++row) {
    EXPECT_TRUE(quantize_int8_row(
        weight.const_data_ptr<float>() + row * weight.size(1), weight.size(1),
        result.weight.mutable_data_ptr<std::int8_t>() + row * groups * kInt8Group,
        static_cast<std::uint16_t*>(result.scales.mutable_data_ptr()) + row * groups));
  }
  return result;
}

at::Tensor all_rows(const Linear& weight, std::int64_t columns) {
  return int8_rows(weight, at::arange(weight.weight.size(0), at::kLong), columns, at::kFloat);
}

TEST(Int8Rows, AreTheWeightsWithinHalfAStep) {
  const at::Tensor weight = random_normal({20, 72}, 1);
  const Linear int8 = quantized(weight);
  EXPECT_THAT(int8.weight.sizes(), ::testing::ElementsAre(20, 96));
  EXPECT_THAT(int8.scales.sizes(), ::testing::ElementsAre(20, 3));
  const double step = int8.scales.to(at::kFloat).max().item<double>();
  EXPECT_TRUE(tensors_close(all_rows(int8, 72), weight, 0.57 * step));
  EXPECT_TRUE(testing::tensors_identical(
      int8_rows(int8, at::tensor({7, 2}, at::kLong), 72, at::kFloat),
      all_rows(int8, 72).index_select(0, at::tensor({7, 2}, at::kLong))));
  EXPECT_THROW(int8_rows(int8, at::tensor({20}, at::kLong), 72, at::kFloat), Error);
}

class Int8Linear : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  // Half a unit in the last place of sums near 70, and what rounding weights to x's type adds.
  double tolerance() const {
    return GetParam() == at::kFloat ? 2e-3 : GetParam() == at::kHalf ? 5e-2 : 0.4;
  }
};

TEST_P(Int8Linear, EqualsTheProductWithItsRows) {
  for (const std::int64_t num_in : {5, 64, 300}) {
    Linear linear = quantized(random_normal({50, num_in}, 1));
    linear.bias = random_normal({50}, 2).to(GetParam());
    const at::Tensor weight = all_rows(linear, num_in).to(at::kDouble);
    for (const std::int64_t num_rows : {1, 3, 8, 11, 32, 33, 40}) {
      const at::Tensor x = random_normal({num_rows, num_in}, 3).to(GetParam());
      const at::Tensor y = linear(x);
      EXPECT_EQ(y.scalar_type(), GetParam());
      EXPECT_TRUE(tensors_close(y.to(at::kDouble),
                                x.to(at::kDouble).mm(weight.t()) + linear.bias.to(at::kDouble),
                                tolerance()))
          << num_rows << " rows of " << num_in;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Int8Linear, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& row) { return c10::toString(row.param); });

// More than one part of the weight at a time.
TEST(Int8Rows, WidenToTheSameNumbers) {
  const Linear int8 = quantized(random_normal({20, 72}, 3));
  EXPECT_TRUE(testing::tensors_identical(widened_int8(int8.weight, int8.scales, 72, at::kFloat),
                                         all_rows(int8, 72)));
}

TEST(Int8Linear, WorksThroughLargeWeights) {
  const Linear linear = quantized(random_normal({1100, 4096}, 1));
  const at::Tensor x = random_normal({40, 4096}, 2);
  EXPECT_TRUE(tensors_close(linear(x), x.mm(all_rows(linear, 4096).t()), 5e-3));
}

TEST(Int8Linear, HasNoGradients) {
  const Linear linear = quantized(random_normal({4, 32}, 1));
  EXPECT_THROW(linear(random_normal({2, 32}, 2).set_requires_grad(true)), Error);
}

TEST(Int8Linear, RefusesOtherWidths) {
  const Linear linear = quantized(random_normal({4, 64}, 1));
  for (const std::int64_t num_tokens : {1, 40}) {
    EXPECT_THROW(linear(random_normal({num_tokens, 32}, 2)), Error);
    EXPECT_THROW(linear(random_normal({num_tokens, 66}, 2)), Error);
  }
}

TEST(Int8Linear, RefusesOtherDevices) {
  Linear linear = quantized(random_normal({4, 64}, 1));
  linear.weight = linear.weight.to(at::kMeta);
  for (const std::int64_t num_tokens : {1, 40}) {
    EXPECT_THROW(linear(random_normal({num_tokens, 64}, 2)), Error);
  }
}

TEST(WeightType, IsParsed) {
  EXPECT_EQ(parse_weight_type(""), WeightType::kFloat);
  EXPECT_EQ(parse_weight_type("int8"), WeightType::kInt8);
  EXPECT_THROW(parse_weight_type("int4"), Error);
}

}  // namespace
}  // namespace kvc

#include "model/row_products.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

class FewRows : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  // For sums near 8: float32's rounding, and one unit in the last place of others.
  double tolerance() const {
    return GetParam() == at::kFloat ? 1e-5 : GetParam() == at::kHalf ? 1.6e-2 : 0.13;
  }
};

at::Tensor exact(const at::Tensor& x, const at::Tensor& weight) {
  return x.to(at::kDouble).mm(weight.to(at::kDouble).t());
}

TEST_P(FewRows, EqualsTheProductInDoublePrecision) {
  for (const std::int64_t num_in : {1, 64, 72, 300}) {
    const at::Tensor weight = random_normal({50, num_in}, 2).to(GetParam());
    const at::Tensor bias = random_normal({50}, 3).to(GetParam());
    for (const std::int64_t num_rows : {1, 2, 5, 8}) {
      const at::Tensor x = random_normal({num_rows, num_in}, 1).to(GetParam());
      ASSERT_TRUE(can_multiply_few_rows(x, weight, bias));
      const at::Tensor product = exact(x, weight);
      const at::Tensor y = multiply_few_rows(x, weight, {});
      EXPECT_EQ(y.scalar_type(), GetParam());
      EXPECT_TRUE(tensors_close(y.to(at::kDouble), product, tolerance()));
      EXPECT_TRUE(tensors_close(multiply_few_rows(x, weight, bias).to(at::kDouble),
                                product + bias.to(at::kDouble), tolerance()));
    }
  }
}

// Enough weights for every thread.
TEST_P(FewRows, ThreadsDoNotChangeIt) {
  const at::Tensor weight = random_normal({701, 512}, 2).to(GetParam());
  const at::Tensor x = random_normal({3, 512}, 1).to(GetParam());
  const at::Tensor y = multiply_few_rows(x, weight, {});
  const int threads = at::get_num_threads();
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    EXPECT_TRUE(testing::tensors_identical(multiply_few_rows(x, weight, {}), y));
  }
  at::set_num_threads(threads);
}

TEST_P(FewRows, TakesRowsWithGaps) {
  const at::Tensor weight = random_normal({9, 64}, 2).to(GetParam());
  const at::Tensor x = random_normal({4, 100}, 1).to(GetParam()).narrow(1, 7, 64);
  ASSERT_TRUE(can_multiply_few_rows(x, weight, {}));
  EXPECT_TRUE(testing::tensors_identical(multiply_few_rows(x, weight, {}),
                                         multiply_few_rows(x.contiguous(), weight, {})));
}

INSTANTIATE_TEST_SUITE_P(Types, FewRows, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& row) { return c10::toString(row.param); });

TEST(FewRows, LeavesTheRestToOthers) {
  const at::Tensor x = random_normal({2, 8}, 1), weight = random_normal({3, 8}, 2);
  EXPECT_TRUE(can_multiply_few_rows(x, weight, {}));
  EXPECT_FALSE(can_multiply_few_rows(random_normal({9, 8}, 1), weight, {}));
  EXPECT_FALSE(can_multiply_few_rows(x.to(at::kDouble), weight.to(at::kDouble), {}));
  EXPECT_FALSE(can_multiply_few_rows(x, weight.to(at::kBFloat16), {}));
  EXPECT_FALSE(can_multiply_few_rows(x, random_normal({8, 3}, 2).t(), {}));
  EXPECT_FALSE(can_multiply_few_rows(x.clone().set_requires_grad(true), weight, {}));
  EXPECT_FALSE(can_multiply_few_rows(x, weight.clone().set_requires_grad(true), {}));
}

}  // namespace
}  // namespace kvc

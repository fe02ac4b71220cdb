#include "model/kernels/bfloat16_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "model/kernels/cpu_features.h"
#include "model/kernels/element.h"
#include "tests/model/kernels/random_values.h"

namespace kvc {
namespace {

constexpr std::int64_t kOutputs = 37;

// Rows of x, channels.
class Bfloat16RowsKernel : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  Bfloat16RowsKernel() {
    const auto [num_rows, in] = GetParam();
    for (const float x : testing::random_values(num_rows * (in + 3), 1)) {
      x_.push_back(bfloat16_of(x));
    }
    for (const float x : testing::random_values(kOutputs * in, 2)) {
      weight_.push_back(bfloat16_of(x));
    }
    product_ = {x_.data(), in + 3, num_rows, weight_.data(), in};
  }

  template <class Kernel>
  std::vector<float> run(const Kernel& kernel, std::int64_t first, std::int64_t last) const {
    std::vector<float> y(static_cast<std::size_t>(product_.num_rows * (last - first)), NAN);
    kernel(product_, first, last, y.data());
    return y;
  }

  std::vector<std::uint16_t> x_, weight_;
  Bfloat16Rows product_;
};

TEST_P(Bfloat16RowsKernel, MatchesReference) {
  const double tolerance = 1e-5 * std::sqrt(product_.in);
  const std::vector<float> expected = run(bfloat16_rows_reference, 0, kOutputs);
  const std::vector<float> actual = run(bfloat16_rows, 0, kOutputs);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance) << i;
  }
}

// So that results do not depend on the number of threads.
TEST_P(Bfloat16RowsKernel, DoesNotDependOnTheRange) {
  const std::vector<float> whole = run(bfloat16_rows, 0, kOutputs);
  const std::vector<float> part = run(bfloat16_rows, 5, 19);
  for (std::int64_t row = 0; row < product_.num_rows; ++row) {
    for (std::int64_t output = 5; output < 19; ++output) {
      ASSERT_EQ(part[static_cast<std::size_t>(row * 14 + output - 5)],
                whole[static_cast<std::size_t>(row * kOutputs + output)]);
    }
  }
}

TEST_P(Bfloat16RowsKernel, WithoutTheInstructionsIsTheReference) {
  allow_avx512_bf16(false);
  const std::vector<float> actual = run(bfloat16_rows, 0, kOutputs);
  allow_avx512_bf16(true);
  EXPECT_EQ(actual, run(bfloat16_rows_reference, 0, kOutputs));
}

INSTANTIATE_TEST_SUITE_P(Sizes, Bfloat16RowsKernel,
                         ::testing::Combine(::testing::Range(1, 9),
                                            ::testing::Values(1, 16, 33, 72, 128, 256, 300)));

}  // namespace
}  // namespace kvc

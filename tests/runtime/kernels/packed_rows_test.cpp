#include "runtime/kernels/packed_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/model/kernels/targets.h"
#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc {
namespace {

using testing::random_numbers;

constexpr std::int64_t kSpare = 3;  // numbers behind each row of a result

std::vector<float> products(const PackedRows& rows, std::int64_t count, const float* x,
                            std::int64_t num_x) {
  std::vector<float> out(static_cast<std::size_t>(num_x * (count + kSpare)), 7.0f);
  rows.multiply(x, num_x, out.data(), count + kSpare);
  return out;
}

class PackedRowsOfShape : public ::testing::TestWithParam<std::pair<std::int64_t, std::int64_t>> {};

TEST_P(PackedRowsOfShape, MultiplyByEveryInstructionSet) {
  const auto [count, width] = GetParam();
  const std::int64_t most = 14;
  const std::vector<float> rows = random_numbers(count * width, 1);
  const std::vector<float> x = random_numbers(most * width, 2);
  const PackedRows packed(rows.data(), count, width);
  testing::on_every_target([&, count = count, width = width] {
    const std::vector<float> of_all = products(packed, count, x.data(), most);
    for (std::int64_t t = 0; t < most; ++t) {
      for (std::int64_t r = 0; r < count + kSpare; ++r) {
        double sum = 0, size = 0;
        for (std::int64_t j = 0; r < count && j < width; ++j) {
          const double term = static_cast<double>(rows[static_cast<std::size_t>(r * width + j)]) *
                              x[static_cast<std::size_t>(t * width + j)];
          sum += term;
          size += std::abs(term);
        }
        const float actual = of_all[static_cast<std::size_t>(t * (count + kSpare) + r)];
        ASSERT_NEAR(actual, r < count ? sum : 7, 1e-6 * size) << "row " << r << " of vector " << t;
      }
    }
    for (std::int64_t num_x = 1; num_x < most; ++num_x) {  // the same sums to the bit
      const std::vector<float> of_some = products(packed, count, x.data(), num_x);
      ASSERT_TRUE(std::equal(of_some.begin(), of_some.end(), of_all.begin())) << num_x;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, PackedRowsOfShape,
                         ::testing::Values(std::pair{1, 1}, std::pair{2, 5}, std::pair{31, 33},
                                           std::pair{32, 24}, std::pair{33, 64}, std::pair{64, 0},
                                           std::pair{0, 8}, std::pair{100, 160}));

}  // namespace
}  // namespace kvc

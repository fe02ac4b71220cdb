#include "runtime/kernels/value_sums.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/runtime/kernels/kernel_inputs.h"
#include "tests/runtime/kernels/runtime_targets.h"

namespace kvc {
namespace {

using testing::random_numbers;
using testing::with_best_and_every_target;

// head_dim, coefficients, query heads
class ValueSums
    : public ::testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, std::int64_t>> {};

TEST_P(ValueSums, MatchProductsInDoublePrecision) {
  const auto [head_dim, k, heads] = GetParam();
  const std::vector<float> rows = random_numbers(head_dim * k, 1),
                           mean = random_numbers(head_dim, 2);
  const std::vector<float> steps = random_numbers(k, 3), first_levels = random_numbers(k, 4);
  const std::vector<float> sums = random_numbers(heads * (k + 1), 5);
  const ValueDecoder decoder{.rows = rows.data(),
                             .mean = mean.data(),
                             .steps = steps.data(),
                             .first_levels = first_levels.data(),
                             .head_dim = head_dim,
                             .num_coefficients = k};
  std::vector<double> expected;
  for (std::int64_t head = 0; head < heads; ++head) {
    const float* of_head = sums.data() + head * (k + 1);
    for (std::int64_t d = 0; d < head_dim; ++d) {
      double value = decoder.mean[d];
      for (std::int64_t c = 0; c < k; ++c) {
        const double z =
            double{of_head[c]} * decoder.steps[c] + double{of_head[k]} * decoder.first_levels[c];
        value += z * decoder.rows[d * k + c];
      }
      expected.push_back(value);
    }
  }
  with_best_and_every_target([&](bool) {
    std::vector<float> values(expected.size(), -1);
    decode_value_sums(decoder, sums.data(), heads, values.data());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(values[i], expected[i], 1e-4) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, ValueSums,
                         ::testing::Combine(::testing::Values(6, 64, 128),
                                            ::testing::Values(0, 3, 40, 131),
                                            ::testing::Values(1, 3, 4, 7)));

}  // namespace
}  // namespace kvc

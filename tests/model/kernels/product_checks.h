// Products with weights against a reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/model/kernels/targets.h"

namespace kvc::testing {

template <class Params>
using ProductKernel = void (*)(const Params&, std::int64_t first, std::int64_t last, float* y);

// Outputs `first` to `last` of all rows.
template <class Params>
std::vector<float> run_product(ProductKernel<Params> kernel, const Params& params,
                               std::int64_t first, std::int64_t last) {
  std::vector<float> y(static_cast<std::size_t>(params.num_rows * (last - first)), NAN);
  kernel(params, first, last, y.data());
  return y;
}

template <class Params>
void expect_products_match(ProductKernel<Params> kernel, ProductKernel<Params> reference,
                           const Params& params, std::int64_t num_out, double tolerance) {
  const std::vector<float> expected = run_product(reference, params, 0, num_out);
  on_every_target([&] {
    const std::vector<float> actual = run_product(kernel, params, 0, num_out);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], tolerance) << "output " << i;
    }
  });
}

// So that results do not depend on the number of threads. More than 19 outputs.
template <class Params>
void expect_range_changes_nothing(ProductKernel<Params> kernel, const Params& params,
                                  std::int64_t num_out) {
  constexpr std::int64_t kFirst = 5, kLast = 19;
  const std::vector<float> whole = run_product(kernel, params, 0, num_out);
  const std::vector<float> part = run_product(kernel, params, kFirst, kLast);
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    for (std::int64_t output = kFirst; output < kLast; ++output) {
      ASSERT_EQ(part[static_cast<std::size_t>(row * (kLast - kFirst) + output - kFirst)],
                whole[static_cast<std::size_t>(row * num_out + output)]);
    }
  }
}

}  // namespace kvc::testing

#include "tests/runtime/kernels/cuda/case_weight.h"

#include <cmath>
#include <cstdint>

#include "runtime/kernels/cuda/few_rows_product_tiles.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"

namespace kvc::testing {

std::size_t at(int row, int width, int column) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
         static_cast<std::size_t>(column);
}

CaseWeight::CaseWeight(KernelBackend& backend, int rows, int columns, DeviceElement element,
                       bool codes, unsigned seed)
    : in(columns) {
  if (!codes) {
    numbers = rounded(case_numbers(std::int64_t{rows} * columns, seed), element);
    device = backend.upload(narrowed(numbers, element));
    return;
  }
  const int groups = weight_groups(columns);
  const std::vector<float> random = case_numbers(std::int64_t{rows} * groups * 32, seed);
  std::vector<float> steps = case_numbers(std::int64_t{rows} * groups, seed + 1);
  for (float& step : steps) {
    step *= 0.02f;  // weights of order one
  }
  steps = rounded(steps, DeviceElement::kFloat16);
  std::vector<std::int8_t> stored(random.size());
  numbers.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      const std::size_t i = at(row, groups * 32, column);
      stored[i] = static_cast<std::int8_t>(std::fmax(-127.0f, std::fmin(127.0f, 50 * random[i])));
      numbers[at(row, columns, column)] =
          static_cast<float>(stored[i]) * steps[at(row, groups, column / 32)];
    }
  }
  device = backend.upload(stored);
  scales = backend.upload(narrowed(steps, DeviceElement::kFloat16));
}

double CaseWeight::product(int row, const std::vector<float>& x, int x_row) const {
  double sum = 0;
  for (int column = 0; column < in; ++column) {
    sum += static_cast<double>(numbers[at(row, in, column)]) * x[at(x_row, in, column)];
  }
  return sum;
}

}  // namespace kvc::testing

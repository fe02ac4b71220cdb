// Weights of a step's cases, on both sides.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/runtime/kernels/cuda/kernel_backend.h"

namespace kvc::testing {

// Where number `column` of a row of `width` numbers lies.
std::size_t at(int row, int width, int column);

// Random numbers of order one: as they are, or int8 codes with float16 scales for 32 neighbours.
struct CaseWeight {
  CaseWeight(KernelBackend& backend, int rows, int columns, DeviceElement element, bool codes,
             unsigned seed);
  // The product of its row `row` with row `x_row` of x [.., in].
  double product(int row, const std::vector<float>& x, int x_row) const;

  int in;
  std::vector<float> numbers;  // [rows, in]
  const void* device = nullptr;
  const void* scales = nullptr;  // null where there are no codes
};

}  // namespace kvc::testing

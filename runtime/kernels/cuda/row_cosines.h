// The cosine of every row of two matrices, by which merge rules with weights score tokens.
#pragma once

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// Sums in float32; 0 where a row is zero.
struct RowCosines {
  const void* a = nullptr;  // [num_rows, width], of `element`
  const void* b = nullptr;  // likewise
  int num_rows = 0, width = 0;
  DeviceElement element = DeviceElement::kFloat16;  // or bfloat16
  float* cosines = nullptr;                         // [num_rows]
};

}  // namespace kvc

// The norms of a decoding step, on the GPU.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// y = x / rms(x) * weight or, with a bias, (x - mean) / deviation * weight + bias, over each row; without a weight
// y = x. Float32 until it is written.
struct NormRows {
  const float* x = nullptr;  // [num_rows, width]
  int num_rows = 0;
  int width = 0;
  const float* weight = nullptr;  // [width], or null
  const float* bias = nullptr;    // [width], or null
  float epsilon = 0;
  void* output = nullptr;                            // [num_rows, width] of `element` = y, or null
  DeviceElement element = DeviceElement::kBFloat16;  // or float16
  float* residual = nullptr;  // [num_rows, width] += residual_scale * y, or null
  float residual_scale = 1;
};
LaunchError norm_rows_cuda(const NormRows& params, void* stream);

}  // namespace kvc

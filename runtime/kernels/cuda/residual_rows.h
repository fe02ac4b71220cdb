// What a decoding step does to rows of the residual stream, on the GPU: embeddings and norms.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// output[i] = scale * table[ids[i]], in float32. Ids lie in GPU memory and in the vocabulary.
struct EmbedRows {
  const std::int32_t* ids = nullptr;  // [num_rows]
  int num_rows = 0;
  int width = 0;
  const void* table =
      nullptr;  // [vocab_size, width] of `element`, or int8 codes as FewRowsProduct's weight
  const void* scales = nullptr;                      // likewise; null: numbers
  DeviceElement element = DeviceElement::kBFloat16;  // or float16
  float scale = 1;
  float* output = nullptr;  // [num_rows, width]
};

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

}  // namespace kvc

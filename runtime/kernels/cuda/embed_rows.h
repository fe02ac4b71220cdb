// Rows of the embedding, on the GPU.
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
LaunchError embed_rows_cuda(const EmbedRows& params, void* stream);

}  // namespace kvc

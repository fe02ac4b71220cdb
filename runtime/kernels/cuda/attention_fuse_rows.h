// Keys or values of a fused layer, written out: for prefill, whose many queries then attend to them at once.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// output[s, row] = first_factor * first row + second_factor * second row, by channels, rounded once. Keys are
// post-RoPE.
struct FuseRows {
  DeviceRows first{}, second{};            // as many rows of one width
  const float* first_factor = nullptr;     // [width], or null: ones
  const float* second_factor = nullptr;    // likewise
  const std::int32_t* num_rows = nullptr;  // [num_sequences] in GPU memory
  int num_sequences = 0;
  int max_rows = 0;  // of a sequence; later rows of the output stay as they are
  DeviceElement element = DeviceElement::kBFloat16;  // of the output: bfloat16 or float16
  void* output = nullptr;  // [num_sequences, max_rows, width], 16-byte aligned
};
LaunchError fuse_rows_cuda(const FuseRows& params, void* stream);

}  // namespace kvc

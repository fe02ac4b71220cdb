// A step's new row of a store, from float32 numbers as they are: latents, and what is held to decide tokens later.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// One new row of every sequence.
struct AppendLatents {
  const float* from = nullptr;  // [num_sequences, to.width]
  int num_sequences = 0;
  const std::int32_t* rows = nullptr;  // [num_sequences] of the store, that it becomes
  DeviceRows to{};                     // bfloat16 or float16; the blocks of the row are there
  bool are_floats = false;             // the store's numbers are float32 instead
};
LaunchError append_latents_cuda(const AppendLatents& params, void* stream);

}  // namespace kvc

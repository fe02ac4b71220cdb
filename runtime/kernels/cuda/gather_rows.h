// Chosen rows of a store, one behind the other in another one: what stays of a cache moves together.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// Row first_rows[s] + i of `to` becomes row chosen[s, i] of `from`, for i below counts[s]. Both are laid out
// alike, of any element, codes with the scales of their row; no block of `to` is one of `from`.
struct GatherRows {
  DeviceRows from, to;
  const std::int32_t* chosen = nullptr;      // [num_sequences, max_count]
  const std::int32_t* counts = nullptr;      // [num_sequences], in GPU memory
  const std::int32_t* first_rows = nullptr;  // likewise; null: 0
  int num_sequences = 1;
  int max_count = 0;
};
LaunchError gather_rows_cuda(const GatherRows& params, void* stream);

}  // namespace kvc

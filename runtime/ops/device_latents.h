// Attention over the latents of PagedLatents on a GPU: which kernels run. Does not use torch, and launches nothing itself
// (device_codes.h).
#pragma once

#include "runtime/ops/device_program.h"

namespace kvc {

// One layer's attention for queries of one token each. Pointers to GPU memory.
struct DeviceLatentAttention {
  RankAttention latents{};  // without scratch memory, partials and max_tiles
  ProjectValues values{};   // projection, offset and ranks
  // What queries read exactly: one part, whose max are the logarithms of its sums.
  DevicePartials exact{};
  void* output = nullptr;  // [num_sequences, num_heads, head_dim], of the query's element
  int most_rows = 0;       // latents of a query

  DeviceProgram program(int multiprocessors, DeviceScratch& scratch) const;
  // Queries first .. first + count - 1 alone.
  DeviceLatentAttention part(int first, int count) const;
};

}  // namespace kvc

// Grid: (rows in chunks of the block's warps, sequence). A warp moves a row, a word of 4 bytes a lane at a time.
#pragma once

#include "runtime/kernels/cuda/gather_rows.h"

namespace kvc {

template <class Thread>
KVC_DEVICE void gather_rows_body(const GatherRows& params, Thread& thread) {
  const int row = thread.block_x() * (thread.count() / 32) + thread.warp();
  const int sequence = thread.block_y();
  if (row >= params.counts[sequence]) {
    return;
  }
  const int chosen = params.chosen[static_cast<std::int64_t>(sequence) * params.max_count + row];
  const int first = params.first_rows == nullptr ? 0 : params.first_rows[sequence];
  const auto* from =
      reinterpret_cast<const std::uint32_t*>(row_place(params.from, sequence, chosen, 0).channels);
  auto* to = const_cast<std::uint32_t*>(reinterpret_cast<const std::uint32_t*>(
      row_place(params.to, sequence, first + row, 0).channels));
  const int words = static_cast<int>(row_stride(params.from) / 4);
  for (int i = thread.lane(); i < words; i += 32) {
    to[i] = from[i];
  }
}

}  // namespace kvc

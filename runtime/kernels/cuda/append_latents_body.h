// Grid: sequences. A block's threads share the numbers of the row.
#pragma once

#include "runtime/kernels/cuda/append_latents.h"
#include "runtime/kernels/cuda/device_numbers.h"

namespace kvc {

template <class Thread>
KVC_DEVICE void append_latents_body(const AppendLatents& params, Thread& thread) {
  const int sequence = thread.block_x(), row = params.rows[sequence], width = params.to.width;
  const float* from = params.from + static_cast<std::int64_t>(sequence) * width;
  if (params.are_floats) {
    float* to = row_of_words<float>(params.to, sequence, row);
    for (int i = thread.index(); i < width; i += thread.count()) {
      to[i] = from[i];
    }
    return;
  }
  auto* to = const_cast<std::uint16_t*>(
      reinterpret_cast<const std::uint16_t*>(row_place(params.to, sequence, row, 0).channels));
  for (int i = thread.index(); i < width; i += thread.count()) {
    to[i] = params.to.element == DeviceElement::kBFloat16 ? narrow_bits(BFloat16{}, from[i])
                                                          : narrow_bits(Float16{}, from[i]);
  }
}

}  // namespace kvc

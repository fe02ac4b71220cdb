// Grid: rows. A block's threads share the channels; their sums are added in a fixed order.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/norm_rows.h"

namespace kvc {

constexpr int kNormThreads = 256;
constexpr int kNormSharedBytes = kNormThreads / 32 * static_cast<int>(sizeof(float));

// The sum of every thread's number, the same bits in all of them. The shared memory is free again afterwards.
template <class Thread>
KVC_DEVICE float block_sum(Thread& thread, float x) {
  auto* sums = reinterpret_cast<float*>(thread.shared());  // [warps]
  KVC_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    x += thread.shuffle_xor(x, lanes);
  }
  if (thread.lane() == 0) {
    sums[thread.warp()] = x;
  }
  thread.sync();
  float total = 0;
  for (int warp = 0; warp < thread.count() / 32; ++warp) {
    total += sums[warp];
  }
  thread.sync();
  return total;
}

template <class Thread>
KVC_DEVICE void norm_rows_body(const NormRows& params, Thread& thread) {
  const std::int64_t first = static_cast<std::int64_t>(thread.block_x()) * params.width;
  const float* x = params.x + first;
  const float per_channel = 1.0f / static_cast<float>(params.width);
  float mean = 0, factor = 1;
  if (params.weight != nullptr) {
    float sum = 0;
    if (params.bias != nullptr) {
      for (int i = thread.index(); i < params.width; i += thread.count()) {
        sum += x[i];
      }
      mean = block_sum(thread, sum) * per_channel;
    }
    sum = 0;
    for (int i = thread.index(); i < params.width; i += thread.count()) {
      sum += (x[i] - mean) * (x[i] - mean);
    }
    factor = 1.0f / sqrtf(block_sum(thread, sum) * per_channel + params.epsilon);
  }
  for (int i = thread.index(); i < params.width; i += thread.count()) {
    float y = x[i];
    if (params.weight != nullptr) {
      y = (y - mean) * factor * params.weight[i] + (params.bias == nullptr ? 0.0f : params.bias[i]);
    }
    if (params.output != nullptr) {
      static_cast<std::uint16_t*>(params.output)[first + i] =
          params.element == DeviceElement::kBFloat16 ? narrow_bits(BFloat16{}, y)
                                                     : narrow_bits(Float16{}, y);
    }
    if (params.residual != nullptr) {
      params.residual[first + i] += params.residual_scale * y;
    }
  }
}

}  // namespace kvc

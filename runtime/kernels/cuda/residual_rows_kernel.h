// Embeddings, and norms of the residual stream.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/few_rows_product_kernel.h"
#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/residual_rows.h"

namespace kvc {

// Grid: (channels in chunks of the block's threads, rows). A thread takes one channel.
struct EmbedRowsKernel : Kernel<EmbedRows, 128> {
  static constexpr const char* kName = "embed_rows";

  template <class Thread>
  static KVC_DEVICE void run(const EmbedRows& params, Thread& thread) {
    const int channel = thread.block_x() * thread.count() + thread.index(), row = thread.block_y();
    if (channel >= params.width) {
      return;
    }
    const std::int64_t id = params.ids[row];
    float x;
    if (params.scales != nullptr) {
      const int groups = weight_groups(params.width);
      const auto code =
          static_cast<const std::int8_t*>(params.table)[id * groups * kWeightScaleGroup + channel];
      const auto scale =
          static_cast<const Float16*>(params.scales)[id * groups + channel / kWeightScaleGroup];
      x = to_float(scale) * static_cast<float>(code);
    } else {
      const auto bits =
          static_cast<const std::uint16_t*>(params.table)[id * params.width + channel];
      x = params.element == DeviceElement::kBFloat16 ? to_float(BFloat16{bits})
                                                     : to_float(Float16{bits});
    }
    params.output[static_cast<std::int64_t>(row) * params.width + channel] = params.scale * x;
  }
};

template <class Launcher>
LaunchError launch_kernels(const EmbedRows& params, const Launcher& launcher) {
  const int threads = launcher.threads(EmbedRowsKernel::kThreads);
  return launcher.template run<EmbedRowsKernel>(
      params, {divide_up(params.width, threads), params.num_rows}, threads);
}

// The sum of every thread's number, the same bits in all of them. The shared memory is free again afterwards.
template <class Thread>
KVC_DEVICE float block_sum(Thread& thread, float x) {
  auto* sums = reinterpret_cast<float*>(thread.shared());  // [warps]
  x = warp_sum(thread, x);
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

// Grid: rows. A block's threads share the channels; their sums are added in a fixed order.
struct NormRowsKernel : Kernel<NormRows, 256> {
  static constexpr const char* kName = "norm_rows";

  template <class Thread>
  static KVC_DEVICE void run(const NormRows& params, Thread& thread) {
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
        y = (y - mean) * factor * params.weight[i] +
            (params.bias == nullptr ? 0.0f : params.bias[i]);
      }
      if (params.output != nullptr) {
        static_cast<std::uint16_t*>(params.output)[first + i] = narrow_bits(params.element, y);
      }
      if (params.residual != nullptr) {
        params.residual[first + i] += params.residual_scale * y;
      }
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const NormRows& params, const Launcher& launcher) {
  const int threads = launcher.threads(NormRowsKernel::kThreads);
  return launcher.template run<NormRowsKernel>(params, {params.num_rows}, threads,
                                               threads / 32 * static_cast<int>(sizeof(float)));
}

}  // namespace kvc

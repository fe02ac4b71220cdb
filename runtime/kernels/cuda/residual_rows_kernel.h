// Embeddings, and norms of the residual stream.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/device_loads.h"
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

// Grid: rows. A block's threads share the channels, four neighbours at a time where the width is a multiple of four; their sums
// are added in a fixed order.
struct NormRowsKernel : Kernel<NormRows, 512> {
  static constexpr const char* kName = "norm_rows";

  template <class Thread>
  static KVC_DEVICE void run(const NormRows& params, Thread& thread) {
    if (params.width % 4 == 0 && params.width <= 4 * kKept * thread.count() &&
        are_aligned(params)) {
      NormInRegisters<Thread>(params, thread).run();
    } else {
      norm_any(params, thread);
    }
  }

 private:
  static constexpr int kKept = 4;  // fours of channels of a thread

  static KVC_DEVICE bool are_aligned(const NormRows& params) {
    return (reinterpret_cast<std::uintptr_t>(params.x) |
            reinterpret_cast<std::uintptr_t>(params.weight)) %
               16 ==
           0;
  }
  // at: of the channel among all rows'; weight: any number where there is none
  static KVC_DEVICE void write_channel(const NormRows& params, std::int64_t at, int channel,
                                       float x, float mean, float factor, float weight) {
    const float y =
        params.weight == nullptr
            ? x
            : (x - mean) * factor * weight + (params.bias == nullptr ? 0.0f : params.bias[channel]);
    if (params.output != nullptr) {
      static_cast<std::uint16_t*>(params.output)[at] = narrow_bits(params.element, y);
    }
    if (params.residual != nullptr) {
      params.residual[at] += params.residual_scale * y;
    }
  }
  static KVC_DEVICE float factor_of(const NormRows& params, float squares) {
    return 1.0f / sqrtf(squares / static_cast<float>(params.width) + params.epsilon);
  }

  // A row is read once.
  template <class Thread>
  class NormInRegisters {
   public:
    KVC_DEVICE NormInRegisters(const NormRows& params, Thread& thread)
        : params_(params),
          thread_(thread),
          first_(static_cast<std::int64_t>(thread.block_x()) * params.width) {}

    KVC_DEVICE void run() {
      FourNumbers weight[kKept] = {}, x[kKept];
      if (params_.weight != nullptr) {
        load(params_.weight, weight);
      }
      load(params_.x + first_, x);
      float mean = 0, factor = 1;
      if (params_.weight != nullptr) {
        if (params_.bias != nullptr) {
          mean = block_sum(thread_, sum_of(x, 0, false)) / static_cast<float>(params_.width);
        }
        factor = factor_of(params_, block_sum(thread_, sum_of(x, mean, true)));
      }
      KVC_UNROLL
      for (int k = 0; k < kKept; ++k) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (channel(k) < params_.width) {
            write_channel(params_, first_ + channel(k) + i, channel(k) + i, x[k].x[i], mean, factor,
                          weight[k].x[i]);
          }
        }
      }
    }

   private:
    KVC_DEVICE int channel(int k) const { return 4 * (thread_.index() + k * thread_.count()); }
    KVC_DEVICE void load(const float* row, FourNumbers (&to)[kKept]) const {
      KVC_UNROLL
      for (int k = 0; k < kKept; ++k) {
        to[k] = channel(k) < params_.width ? four_floats(row + channel(k)) : FourNumbers{};
      }
    }
    KVC_DEVICE float sum_of(const FourNumbers (&x)[kKept], float mean, bool squares) const {
      float sum = 0;
      KVC_UNROLL
      for (int k = 0; k < kKept; ++k) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float y = channel(k) < params_.width ? x[k].x[i] - mean : 0.0f;
          sum += squares ? y * y : y;
        }
      }
      return sum;
    }

    const NormRows& params_;
    Thread& thread_;
    std::int64_t first_;
  };

  template <class Thread>
  static KVC_DEVICE void norm_any(const NormRows& params, Thread& thread) {
    const std::int64_t first = static_cast<std::int64_t>(thread.block_x()) * params.width;
    const float* x = params.x + first;
    float mean = 0, factor = 1;
    if (params.weight != nullptr) {
      float sum = 0;
      if (params.bias != nullptr) {
        for (int i = thread.index(); i < params.width; i += thread.count()) {
          sum += x[i];
        }
        mean = block_sum(thread, sum) / static_cast<float>(params.width);
      }
      sum = 0;
      for (int i = thread.index(); i < params.width; i += thread.count()) {
        sum += (x[i] - mean) * (x[i] - mean);
      }
      factor = factor_of(params, block_sum(thread, sum));
    }
    for (int i = thread.index(); i < params.width; i += thread.count()) {
      write_channel(params, first + i, i, x[i], mean, factor,
                    params.weight == nullptr ? 0.0f : params.weight[i]);
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

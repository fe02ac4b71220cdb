// Grid: (rows in chunks of the block's warps). A warp takes a row.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/row_cosines.h"

namespace kvc {

template <class T>
struct RowCosinesKernel : Kernel<RowCosines, 128> {
  static constexpr const char* kName = "row_cosines";

  template <class Thread>
  static KVC_DEVICE void run(const RowCosines& params, Thread& thread) {
    const int row = thread.block_x() * (thread.count() / 32) + thread.warp();
    if (row >= params.num_rows) {
      return;
    }
    const T* a = static_cast<const T*>(params.a) + static_cast<std::int64_t>(row) * params.width;
    const T* b = static_cast<const T*>(params.b) + static_cast<std::int64_t>(row) * params.width;
    float product = 0, left = 0, right = 0;
    for (int i = thread.lane(); i < params.width; i += 32) {
      const float x = to_float(a[i]), y = to_float(b[i]);
      product += x * y;
      left += x * x;
      right += y * y;
    }
    product = warp_sum(thread, product);
    left = warp_sum(thread, left);
    right = warp_sum(thread, right);
    if (thread.lane() == 0) {
      const float norms = sqrtf(left) * sqrtf(right);
      params.cosines[row] = product / (norms > 1e-30f ? norms : 1e-30f);
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const RowCosines& params, const Launcher& launcher) {
  return with_type(params.element, [&](auto type) {
    using Instance = RowCosinesKernel<decltype(type)>;
    const int threads = launcher.threads(Instance::kThreads);
    return launcher.template run<Instance>(params, {divide_up(params.num_rows, threads / 32)},
                                           threads);
  });
}

}  // namespace kvc

// Grid: (channels, as many as a block has warps; KV head; sequence). A warp makes one channel of all query heads
// of a KV head from one read of its row of the projection.
#pragma once

#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

template <class T>
struct ProjectValuesKernel : Kernel<ProjectValues, 128, 1> {
  static constexpr const char* kName = "project_values";

  template <class Thread>
  static KVC_DEVICE void run(const ProjectValues& params, Thread& thread) {
    constexpr int kHeads = 8;  // that are summed together
    const int warps = thread.count() / 32, kv_head = thread.block_y(), lane = thread.lane();
    const int channel = thread.block_x() * warps + thread.warp();
    if (channel >= params.head_dim) {
      return;  // no barrier of the block follows
    }
    const int group = params.num_heads / params.num_kv_heads;
    const std::int64_t row = static_cast<std::int64_t>(kv_head) * params.head_dim + channel;
    const void* rows = params.projections == nullptr
                           ? params.projection
                           : params.projections[thread.block_z() * params.projections_stride];
    const T* projection = static_cast<const T*>(rows) + row * params.rank_stride;
    const int num_ranks = rows == nullptr ? 0 : params.rank;
    const std::int64_t first =
        static_cast<std::int64_t>(thread.block_z()) * params.num_heads + kv_head * group;
    for (int head = 0; head < group; head += kHeads) {
      float sums[kHeads] = {};
      for (int rank = lane; rank < num_ranks; rank += 32) {
        const float weight = to_float(projection[rank]);
        KVC_UNROLL
        for (int i = 0; i < kHeads; ++i) {
          if (head + i < group) {
            sums[i] += weight * params.sums[(first + head + i) * params.sums_width + rank];
          }
        }
      }
      KVC_UNROLL
      for (int i = 0; i < kHeads; ++i) {
        sums[i] = warp_sum(thread, sums[i]);
        if (lane == 0 && head + i < group) {
          params.output[(first + head + i) * params.head_dim + channel] =
              sums[i] * (params.scale == nullptr ? 1.0f : params.scale[row]) +
              (params.offset == nullptr ? 0.0f : params.offset[row]);
        }
      }
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const ProjectValues& params, const Launcher& launcher) {
  return with_type(params.element, [&](auto type) {
    using Instance = ProjectValuesKernel<decltype(type)>;
    const int threads = launcher.threads(Instance::kThreads);
    return launcher.template run<Instance>(
        params,
        {divide_up(params.head_dim, threads / 32), params.num_kv_heads, params.num_sequences},
        threads);
  });
}

}  // namespace kvc

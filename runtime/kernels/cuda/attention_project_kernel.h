// Grid: (channels, four for each of a block's warps; KV head; sequence). A warp makes its channels of all query heads of a KV head
// from one read of the sums and of its rows of the projection.
#pragma once

#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

template <class T>
struct ProjectValuesKernel : Kernel<ProjectValues, 128, 6> {
  static constexpr const char* kName = "project_values";

  template <class Thread>
  static KVC_DEVICE void run(const ProjectValues& params, Thread& thread) {
    const int warps = thread.count() / 32, kv_head = thread.block_y(), lane = thread.lane();
    const int first_channel = (thread.block_x() * warps + thread.warp()) * kChannels;
    if (first_channel >= params.head_dim) {
      return;  // no barrier of the block follows
    }
    const int group = params.num_heads / params.num_kv_heads;
    const std::int64_t row = static_cast<std::int64_t>(kv_head) * params.head_dim;
    const void* rows = params.projections == nullptr
                           ? params.projection
                           : params.projections[thread.block_z() * params.projections_stride];
    const int num_ranks = rows == nullptr ? 0 : params.rank;
    const T* projection[kChannels];
    KVC_UNROLL
    for (int c = 0; c < kChannels; ++c) {  // the last one instead of those that there are not
      const int channel = first_channel + c;
      const int known = channel < params.head_dim ? channel : params.head_dim - 1;
      projection[c] = rows == nullptr
                          ? nullptr
                          : static_cast<const T*>(rows) + (row + known) * params.rank_stride;
    }
    const std::int64_t first =
        static_cast<std::int64_t>(thread.block_z()) * params.num_heads + kv_head * group;
    for (int head = 0; head < group; head += kHeads) {
      float sums[kChannels][kHeads] = {};
      KVC_UNROLL_BY_4
      for (int rank = lane; rank < num_ranks; rank += 32) {
        float x[kHeads];
        KVC_UNROLL
        for (int i = 0; i < kHeads; ++i) {
          x[i] = head + i < group ? params.sums[(first + head + i) * params.sums_width + rank] : 0;
        }
        KVC_UNROLL
        for (int c = 0; c < kChannels; ++c) {
          const float weight = to_float(projection[c][rank]);
          KVC_UNROLL
          for (int i = 0; i < kHeads; ++i) {
            sums[c][i] += weight * x[i];
          }
        }
      }
      KVC_UNROLL
      for (int c = 0; c < kChannels; ++c) {
        write_channel(params, thread, first + head, group - head, row, first_channel + c, sums[c]);
      }
    }
  }

 private:
  static constexpr int kChannels = 4;
  static constexpr int kHeads = 4;  // that are summed together

  // heads: how many there are from `first` on.
  template <class Thread>
  static KVC_DEVICE void write_channel(const ProjectValues& params, Thread& thread,
                                       std::int64_t first, int heads, std::int64_t row, int channel,
                                       const float (&sums)[kHeads]) {
    KVC_UNROLL
    for (int i = 0; i < kHeads; ++i) {
      const float sum = warp_sum(thread, sums[i]);
      if (thread.lane() == 0 && i < heads && channel < params.head_dim) {
        params.output[(first + i) * params.head_dim + channel] =
            sum * (params.scale == nullptr ? 1.0f : params.scale[row + channel]) +
            (params.offset == nullptr ? 0.0f : params.offset[row + channel]);
      }
    }
  }

 public:
  // Channels of a block of so many threads.
  static constexpr int channels_of(int threads) { return threads / 32 * kChannels; }
};

template <class Launcher>
LaunchError launch_kernels(const ProjectValues& params, const Launcher& launcher) {
  return with_type(params.element, [&](auto type) {
    using Instance = ProjectValuesKernel<decltype(type)>;
    const int threads = launcher.threads(Instance::kThreads);
    return launcher.template run<Instance>(
        params,
        {divide_up(params.head_dim, Instance::channels_of(threads)), params.num_kv_heads,
         params.num_sequences},
        threads);
  });
}

}  // namespace kvc

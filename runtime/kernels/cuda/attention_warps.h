// What the warps of a block have summed (attention_tiles.h) becomes one softmax.
#pragma once

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/attention_tiles.h"

namespace kvc {

// Shared memory. width: of all sources' outputs.
constexpr int merge_bytes(int warps, int query_tiles, int width) {
  return warps * 8 * query_tiles * (width + 2) * 4;
}

// Channel of ValueSums::c[m][n][i] where values are codes: two that stand side by side are rows lane / 4 and lane / 4 + 8.
KVC_HOST_DEVICE int coded_channel(int m, int i, int lane) {
  return 16 * m + 2 * (lane / 4) + i / 2;
}

// The warp's softmaxes to states [warps, 8 kQueryTiles], and write(n, i, row) for the lane's number i of a query tile n's sums;
// row: that of its head in `states`.
template <int kQueryTiles, class Thread, class Write>
KVC_DEVICE void write_warp(Thread& thread, const WarpSoftmax<kQueryTiles>& softmax,
                           SoftmaxState* states, const Write& write) {
  const int lane = thread.lane();
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = thread.warp() * 8 * kQueryTiles + 8 * n + 2 * (lane % 4) + i % 2;
      if (lane < 4 && i < 2) {
        states[row] = softmax.state[n][i % 2];
      }
      write(n, i, row);
    }
  }
}

// kCodes: sums have coded_channel()'s order. write(head, channel, softmax, output) for `heads` query heads and all channels,
// each by one thread; output [kSources]: below the softmax's maximum. All threads of the block call it. A barrier is needed
// before shared memory has another use.
template <bool kCodes = false, int kHeadDim, int kQueryTiles, int kSources, class Thread,
          class Write>
KVC_DEVICE void merge_warps(Thread& thread, int heads, const WarpSoftmax<kQueryTiles>& softmax,
                            const ValueSums<kHeadDim, kQueryTiles> (&sums)[kSources],
                            const Write& write) {
  constexpr int kHeads = 8 * kQueryTiles, kWidth = kSources * kHeadDim;
  auto* states = reinterpret_cast<SoftmaxState*>(thread.shared());  // [warps, heads]
  const int warps = thread.count() / 32, lane = thread.lane();
  auto* outputs = reinterpret_cast<float*>(states + warps * kHeads);  // [warps, heads, kWidth]
  thread.sync();
  write_warp(thread, softmax, states, [&](int n, int i, int row) {
    float* output =
        outputs + row * kWidth + (kCodes ? coded_channel(0, i, lane) : lane / 4 + 8 * (i / 2));
    KVC_UNROLL
    for (int source = 0; source < kSources; ++source) {
      KVC_UNROLL
      for (int m = 0; m < kHeadDim / 16; ++m) {
        output[source * kHeadDim + 16 * m] = sums[source].c[m][n][i];
      }
    }
  });
  thread.sync();
  for (int i = thread.index(); i < heads * kHeadDim; i += thread.count()) {
    const int head = i / kHeadDim, channel = i % kHeadDim;
    SoftmaxState total;
    float output[kSources] = {};
    for (int warp = 0; warp < warps; ++warp) {
      const SoftmaxFactors factors = combine_softmax(total, states[warp * kHeads + head]);
      const float* of_warp = outputs + (warp * kHeads + head) * kWidth + channel;
      KVC_UNROLL
      for (int source = 0; source < kSources; ++source) {
        output[source] = factors.total * output[source] + factors.part * of_warp[source * kHeadDim];
      }
    }
    write(head, channel, total, output);
  }
}

// One channel of a part's output, and its softmax with the first.
KVC_DEVICE void write_partial(const DevicePartials& partials, std::int64_t row, int width,
                              int channel, const SoftmaxState& total, float output) {
  partials.output[row * width + channel] = output;
  if (channel == 0) {
    partials.max[row] = total.max;
    partials.sum[row] = total.sum;
  }
}

}  // namespace kvc

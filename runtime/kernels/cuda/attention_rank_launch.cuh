// Instances of the kernels in rank space, launched.
#pragma once

#include "runtime/kernels/cuda/attention_ranks_body.h"
#include "runtime/kernels/cuda/attention_rebuild_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {

constexpr int kRebuildWarps = 8;
constexpr int kSumWarps = 4;

template <class T, int kPairTiles, class Source>
__global__ void __launch_bounds__(32 * kRebuildWarps, 1)
    rebuild_scores_kernel(RankAttention params) {
  DeviceThread thread;
  rebuild_scores_body<T, kPairTiles, Source>(params, thread);
}

template <class T, int kQueryTiles, class Source>
__global__ void __launch_bounds__(32 * kSumWarps, 1) sum_ranks_kernel(RankAttention params) {
  DeviceThread thread;
  sum_ranks_body<T, kQueryTiles, Source>(params, thread);
}

template <class T, int kPairTiles, class Source>
LaunchError launch_rebuild(const RankAttention& params, void* stream) {
  const dim3 grid((params.max_tiles + kRebuildWarps - 1) / kRebuildWarps, params.num_kv_heads,
                  params.num_sequences);
  return launch("rebuild_scores", rebuild_scores_kernel<T, kPairTiles, Source>, grid,
                32 * kRebuildWarps, RebuildShared<kPairTiles, Source>::bytes(kRebuildWarps), stream,
                params);
}

template <class T, class Source>
LaunchError launch_rebuild_pairs(const RankAttention& params, void* stream) {
  switch (params.keys.pairs.num_pairs) {
    case 16:
      return launch_rebuild<T, 2, Source>(params, stream);
    case 24:
      return launch_rebuild<T, 3, Source>(params, stream);
    case 32:
      return launch_rebuild<T, 4, Source>(params, stream);
    case 48:
      return launch_rebuild<T, 6, Source>(params, stream);
    default:
      return launch_rebuild<T, 8, Source>(params, stream);
  }
}

template <class T, int kQueryTiles, class Source>
LaunchError launch_sums(const RankAttention& params, void* stream) {
  const int ranks = kSumWarps * kWarpRanks;
  const dim3 grid(params.partials.num_parts, (params.sums_width + ranks - 1) / ranks,
                  params.num_sequences * rank_head_chunks(params, kQueryTiles));
  return launch("sum_ranks", sum_ranks_kernel<T, kQueryTiles, Source>, grid, 32 * kSumWarps,
                kSumWarps * RankSumsShared<Source>::kWarpBytes, stream, params);
}

// As many query heads at once as share their latents.
template <class T, class Source>
LaunchError launch_sums_heads(const RankAttention& params, void* stream) {
  const int heads = params.num_heads / (params.tiles == nullptr ? 1 : params.num_blocks);
  if (heads <= 8) {
    return launch_sums<T, 1, Source>(params, stream);
  }
  return heads <= 16 ? launch_sums<T, 2, Source>(params, stream)
                     : launch_sums<T, 4, Source>(params, stream);
}

// launch<T, Source>(params, stream) of the store and the type.
#define KVC_LAUNCH_RANK(launch, params, stream)                                                \
  ((params).tiles != nullptr          ? launch<Float16, TileCodes>(params, stream)             \
   : needs_decoding((params).latents) ? ((params).element == DeviceElement::kBFloat16          \
                                             ? launch<BFloat16, LatentCodes>(params, stream)   \
                                             : launch<Float16, LatentCodes>(params, stream))   \
                                      : ((params).element == DeviceElement::kBFloat16          \
                                             ? launch<BFloat16, LatentNumbers>(params, stream) \
                                             : launch<Float16, LatentNumbers>(params, stream)))

}  // namespace kvc

#include "runtime/kernels/cuda/attention_one_pass_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

template <class T, int kPairTiles, int kQueryTiles>
__global__ void __launch_bounds__(32 * kOnePassWarps, 1)
    one_pass_attention_kernel(OnePassAttention params) {
#if __CUDA_ARCH__ < 1200  // whose blocks have less than kOnePassLeastShared
  DeviceThread thread;
  one_pass_attention_body<T, kPairTiles, kQueryTiles>(params, thread);
#endif
}

template <class T, int kPairTiles, int kQueryTiles>
LaunchError launch_one_pass(const RankAttention& params, void* stream) {
  const OnePassAttention attention{params, one_pass_layout(params)};
  const dim3 grid(params.partials.num_parts, attention.at.blocks, params.num_sequences);
  return launch("one_pass_attention", one_pass_attention_kernel<T, kPairTiles, kQueryTiles>, grid,
                32 * kOnePassWarps, attention.at.bytes, stream, attention);
}

template <class T, int kPairTiles>
LaunchError launch_heads(const RankAttention& params, void* stream) {
  if constexpr (kPairTiles < 8) {
    if (params.one_pass.query_tiles == 4) {
      return launch_one_pass<T, kPairTiles, 4>(params, stream);
    }
  }
  return params.one_pass.query_tiles == 2 ? launch_one_pass<T, kPairTiles, 2>(params, stream)
                                          : launch_one_pass<T, kPairTiles, 1>(params, stream);
}

template <class T>
LaunchError launch_pairs(const RankAttention& params, void* stream) {
  switch (params.keys.pairs.num_pairs) {
    case 16:
      return launch_heads<T, 2>(params, stream);
    case 32:
      return launch_heads<T, 4>(params, stream);
    case 48:
      return launch_heads<T, 6>(params, stream);
    default:
      return launch_heads<T, 8>(params, stream);
  }
}

}  // namespace

LaunchError rank_attention_cuda(const RankAttention& params, void* stream) {
  if (params.one_pass.query_tiles > 0) {
    return one_pass_attention_cuda(params, stream);
  }
  const LaunchError error = rebuild_scores_cuda(params, stream);
  return error.empty() ? sum_ranks_cuda(params, stream) : error;
}

LaunchError one_pass_attention_cuda(const RankAttention& params, void* stream) {
  if (LaunchError error = check_one_pass_attention(params, max_shared_bytes()); !error.empty()) {
    return error;
  }
  return params.element == DeviceElement::kBFloat16 ? launch_pairs<BFloat16>(params, stream)
                                                    : launch_pairs<Float16>(params, stream);
}

}  // namespace kvc

// The dense kernel's instance for a layer, launched.
#pragma once

#include <string>

#include "runtime/kernels/cuda/attention_dense_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {

constexpr int kMostDenseWarps = 4;

template <class T, int kHeadDim, int kQueryTiles, int kSources, bool kCodes>
__global__ void __launch_bounds__(32 * kMostDenseWarps, 1)
    dense_attention_kernel(DenseAttention params) {
  DeviceThread thread;
  dense_attention_body<T, kHeadDim, kQueryTiles, kSources, kCodes>(params, thread);
}

// With as many warps, up to four, as the device's shared memory takes.
template <class T, int kHeadDim, int kQueryTiles, int kSources, bool kCodes>
LaunchError launch_dense(const DenseAttention& params, void* stream) {
  using Shared = DenseShared<kHeadDim, kSources, kCodes>;
  int warps = kMostDenseWarps;
  const int most = max_shared_bytes();
  while (warps > 1 && Shared::bytes(warps, kQueryTiles) > most) {
    warps /= 2;
  }
  const dim3 grid(params.partials.num_parts, params.num_kv_heads, params.num_sequences);
  return launch(kSources == 2 ? "fused_attention" : "dense_attention",
                dense_attention_kernel<T, kHeadDim, kQueryTiles, kSources, kCodes>, grid,
                32 * warps, Shared::bytes(warps, kQueryTiles), stream, params);
}

template <class T, int kHeadDim, int kSources, bool kCodes>
LaunchError launch_dense_heads(const DenseAttention& params, void* stream) {
  if constexpr (kHeadDim * kSources <= 128) {
    if (params.num_heads / params.num_kv_heads > 8) {
      return launch_dense<T, kHeadDim, 2, kSources, kCodes>(params, stream);
    }
  }
  return launch_dense<T, kHeadDim, 1, kSources, kCodes>(params, stream);
}

template <class T, int kSources, bool kCodes>
LaunchError launch_dense_width(const DenseAttention& params, void* stream) {
  switch (params.head_dim) {
    case 32:
      return launch_dense_heads<T, 32, kSources, kCodes>(params, stream);
    case 64:
      return launch_dense_heads<T, 64, kSources, kCodes>(params, stream);
    case 128:
      return launch_dense_heads<T, 128, kSources, kCodes>(params, stream);
    default:
      if constexpr (kSources == 1) {
        return launch_dense_heads<T, 256, kSources, kCodes>(params, stream);
      }
      return "fused_attention: no such head_dim";
  }
}

template <int kSources, bool kCodes>
LaunchError launch_dense_type(const DenseAttention& params, void* stream) {
  return params.element == DeviceElement::kBFloat16
             ? launch_dense_width<BFloat16, kSources, kCodes>(params, stream)
             : launch_dense_width<Float16, kSources, kCodes>(params, stream);
}

}  // namespace kvc

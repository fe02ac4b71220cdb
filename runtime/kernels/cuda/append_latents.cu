#include "runtime/kernels/cuda/append_latents.h"

#include "runtime/kernels/cuda/append_latents_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) append_latents_kernel(AppendLatents params) {
  DeviceThread thread;
  append_latents_body(params, thread);
}

}  // namespace

LaunchError append_latents_cuda(const AppendLatents& params, void* stream) {
  return launch("append_latents", append_latents_kernel, dim3(params.num_sequences), kThreads, 0,
                stream, params);
}

}  // namespace kvc

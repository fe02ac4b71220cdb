#include "runtime/kernels/cuda/attention_combine.h"

#include "runtime/kernels/cuda/attention_combine_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) combine_partials_kernel(CombinePartials params) {
  DeviceThread thread;
  combine_partials_body(params, thread);
}

}  // namespace

LaunchError combine_partials_cuda(const CombinePartials& params, void* stream) {
  const dim3 grid(params.num_heads, params.num_sequences, (params.width + kThreads - 1) / kThreads);
  return launch("combine_partials", combine_partials_kernel, grid, kThreads, 0, stream, params);
}

}  // namespace kvc

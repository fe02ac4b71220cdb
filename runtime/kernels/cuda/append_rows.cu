#include "runtime/kernels/cuda/append_rows.h"

#include "runtime/kernels/cuda/append_rows_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) append_rows_kernel(AppendRows params) {
  DeviceThread thread;
  append_rows_body(params, thread);
}

}  // namespace

LaunchError append_rows_cuda(const AppendRows& params, void* stream) {
  if (LaunchError error = check_append_rows(params); !error.empty()) {
    return error;
  }
  const int heads = params.num_heads + 2 * params.num_kv_heads, warps = kThreads / 32;
  return launch("append_rows", append_rows_kernel,
                dim3((heads + warps - 1) / warps, params.num_sequences), kThreads, 0, stream,
                params);
}

}  // namespace kvc

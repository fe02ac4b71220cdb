#include "runtime/kernels/cuda/embed_rows.h"

#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/embed_rows_body.h"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) embed_rows_kernel(EmbedRows params) {
  DeviceThread thread;
  embed_rows_body(params, thread);
}

}  // namespace

LaunchError embed_rows_cuda(const EmbedRows& params, void* stream) {
  return launch("embed_rows", embed_rows_kernel,
                dim3((params.width + kThreads - 1) / kThreads, params.num_rows), kThreads, 0,
                stream, params);
}

}  // namespace kvc

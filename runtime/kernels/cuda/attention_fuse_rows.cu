#include "runtime/kernels/cuda/attention_fuse_rows.h"

#include "runtime/kernels/cuda/attention_fuse_rows_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) fuse_rows_kernel(FuseRows params) {
  DeviceThread thread;
  fuse_rows_body(params, thread);
}

}  // namespace

LaunchError fuse_rows_cuda(const FuseRows& params, void* stream) {
  if (params.first.width != params.second.width || params.first.width % kScaledChannels != 0) {
    return "fuse_rows: rows of " + std::to_string(params.first.width) + " and " +
           std::to_string(params.second.width) + " numbers, expected one multiple of 32";
  }
  const std::int64_t pieces = static_cast<std::int64_t>(params.max_rows) * (params.first.width / 8);
  const dim3 grid(static_cast<unsigned>((pieces + kThreads - 1) / kThreads), params.num_sequences);
  return launch("fuse_rows", fuse_rows_kernel, grid, kThreads, 0, stream, params);
}

}  // namespace kvc

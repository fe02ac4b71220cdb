#include "runtime/kernels/cuda/code_tiles_body.h"
#include "runtime/kernels/cuda/code_tiles_device.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) decode_tiles_kernel(CodeTilesParams params) {
  DeviceThread thread;
  decode_tiles_body(params, thread);
}

}  // namespace

LaunchError decode_tiles_cuda(const CodeTilesParams& params, void* stream) {
  return launch("decode_tiles", decode_tiles_kernel, dim3(params.count, params.num_sequences),
                kThreads, 0, stream, params);
}

}  // namespace kvc

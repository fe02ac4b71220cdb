#include "runtime/kernels/cuda/code_tiles_body.h"
#include "runtime/kernels/cuda/code_tiles_device.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kThreads = 32;

__global__ void __launch_bounds__(kThreads) encode_tiles_kernel(CodeTilesParams params) {
  DeviceThread thread;
  encode_tiles_body(params, thread);
}

}  // namespace

LaunchError encode_tiles_cuda(const CodeTilesParams& params, void* stream) {
  return launch("encode_tiles", encode_tiles_kernel, dim3(params.count, params.num_sequences),
                kThreads, 32 * sizeof(float), stream, params);
}

}  // namespace kvc

#include "runtime/kernels/cuda/norm_rows.h"

#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"
#include "runtime/kernels/cuda/norm_rows_body.h"

namespace kvc {
namespace {

__global__ void __launch_bounds__(kNormThreads) norm_rows_kernel(NormRows params) {
  DeviceThread thread;
  norm_rows_body(params, thread);
}

}  // namespace

LaunchError norm_rows_cuda(const NormRows& params, void* stream) {
  return launch("norm_rows", norm_rows_kernel, dim3(params.num_rows), kNormThreads,
                kNormSharedBytes, stream, params);
}

}  // namespace kvc

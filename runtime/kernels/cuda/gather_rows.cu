#include "runtime/kernels/cuda/gather_rows.h"

#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/gather_rows_body.h"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) gather_rows_kernel(GatherRows params) {
  DeviceThread thread;
  gather_rows_body(params, thread);
}

}  // namespace

LaunchError gather_rows_cuda(const GatherRows& params, void* stream) {
  if (params.from.width != params.to.width || params.from.element != params.to.element ||
      params.from.per_channel || params.to.per_channel || params.from.width % 4 != 0) {
    return "gather_rows: takes two stores laid out alike, of rows that hold their own scales and a "
           "multiple of "
           "4 channels";
  }
  const int rows = kThreads / 32;
  return launch("gather_rows", gather_rows_kernel,
                dim3((params.max_count + rows - 1) / rows, params.num_sequences), kThreads, 0,
                stream, params);
}

}  // namespace kvc

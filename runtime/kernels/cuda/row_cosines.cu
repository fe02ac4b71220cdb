#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"
#include "runtime/kernels/cuda/merge_scores.h"
#include "runtime/kernels/cuda/merge_scores_body.h"

namespace kvc {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) row_cosines_kernel(RowCosines params) {
  DeviceThread thread;
  row_cosines_body<T>(params, thread);
}

}  // namespace

LaunchError row_cosines_cuda(const RowCosines& params, void* stream) {
  const int rows = kThreads / 32;
  return launch("row_cosines",
                params.element == DeviceElement::kBFloat16 ? row_cosines_kernel<BFloat16>
                                                           : row_cosines_kernel<Float16>,
                dim3((params.num_rows + rows - 1) / rows), kThreads, 0, stream, params);
}

}  // namespace kvc

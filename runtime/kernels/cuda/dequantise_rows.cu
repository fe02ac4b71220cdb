#include "runtime/kernels/cuda/dequantise_rows_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"
#include "runtime/kernels/cuda/quantise_rows.h"

namespace kvc {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) dequantise_rows_kernel(DequantiseRows params) {
  DeviceThread thread;
  dequantise_rows_body<T>(params, thread);
}

}  // namespace

LaunchError dequantise_rows_cuda(const DequantiseRows& params, void* stream) {
  if (params.from.width % kScaledChannels != 0) {
    return "dequantise_rows: takes rows of a multiple of 32 channels";
  }
  const std::int64_t pieces =
      static_cast<std::int64_t>(params.count) * (params.from.width / kDequantisedChannels);
  const dim3 grid(static_cast<unsigned>((pieces + kThreads - 1) / kThreads), params.num_sequences);
  return launch("dequantise_rows",
                params.to_element == DeviceElement::kBFloat16 ? dequantise_rows_kernel<BFloat16>
                                                              : dequantise_rows_kernel<Float16>,
                grid, kThreads, 0, stream, params);
}

}  // namespace kvc

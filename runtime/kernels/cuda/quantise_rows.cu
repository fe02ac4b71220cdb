#include "runtime/kernels/cuda/quantise_rows.h"

#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"
#include "runtime/kernels/cuda/quantise_rows_body.h"

namespace kvc {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) quantise_rows_kernel(QuantiseRows params) {
  DeviceThread thread;
  quantise_rows_body<T>(params, thread);
}

}  // namespace

LaunchError quantise_rows_cuda(const QuantiseRows& params, void* stream) {
  if (params.to.width % kScaledChannels != 0 || !is_coded(params.to.element) ||
      (params.to.per_channel && params.count % kScaledRows != 0)) {
    return "quantise_rows: takes rows of a multiple of 32 channels, to int8 or int4; with a scale "
           "for each "
           "channel, a multiple of 32 of them";
  }
  const dim3 grid((quantise_pieces(params) + kThreads - 1) / kThreads, params.num_sequences);
  return launch("quantise_rows",
                params.from_element == DeviceElement::kBFloat16 ? quantise_rows_kernel<BFloat16>
                                                                : quantise_rows_kernel<Float16>,
                grid, kThreads, 0, stream, params);
}

}  // namespace kvc

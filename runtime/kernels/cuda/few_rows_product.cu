#include "runtime/kernels/cuda/few_rows_product.h"

#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/few_rows_product_body.h"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kThreads = 32 * kProductWarps;

template <class T, bool kCodes, bool kGated>
__global__ void __launch_bounds__(kThreads) few_rows_product_kernel(FewRowsProduct params) {
  DeviceThread thread;
  few_rows_product_body<T, kCodes, kGated>(params, thread);
}

template <class T, bool kCodes>
LaunchError launch_product(const FewRowsProduct& params, void* stream) {
  return launch("few_rows_product",
                params.gated ? few_rows_product_kernel<T, kCodes, true>
                             : few_rows_product_kernel<T, kCodes, false>,
                dim3((params.out + kProductOutputs - 1) / kProductOutputs), kThreads,
                FewRowsShared::bytes(kProductWarps, params.gated), stream, params);
}

template <class T>
LaunchError launch_type(const FewRowsProduct& params, void* stream) {
  return params.scales != nullptr ? launch_product<T, true>(params, stream)
                                  : launch_product<T, false>(params, stream);
}

}  // namespace

LaunchError few_rows_product_cuda(const FewRowsProduct& params, void* stream) {
  if (LaunchError error = check_few_rows_product(params); !error.empty()) {
    return error;
  }
  return params.element == DeviceElement::kBFloat16 ? launch_type<BFloat16>(params, stream)
                                                    : launch_type<Float16>(params, stream);
}

}  // namespace kvc

#include "runtime/kernels/cuda/sample_tokens.h"

#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"
#include "runtime/kernels/cuda/sample_tokens_body.h"

namespace kvc {
namespace {

__global__ void __launch_bounds__(kSampleThreads, 1) sample_tokens_kernel(SampleTokens params) {
  DeviceThread thread;
  SampleBlock<DeviceThread>(params, thread).run();
}

}  // namespace

LaunchError sample_tokens_cuda(const SampleTokens& params, void* stream) {
  return launch("sample_tokens", sample_tokens_kernel, dim3(params.num_sequences), kSampleThreads,
                SampleShared::bytes(kSampleThreads), stream, params);
}

}  // namespace kvc

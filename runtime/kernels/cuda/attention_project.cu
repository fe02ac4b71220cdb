#include "runtime/kernels/cuda/attention_project_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

constexpr int kWarps = 4;

template <class T>
__global__ void __launch_bounds__(32 * kWarps, 1) project_values_kernel(ProjectValues params) {
  DeviceThread thread;
  project_values_body<T>(params, thread);
}

}  // namespace

LaunchError project_values_cuda(const ProjectValues& params, void* stream) {
  const dim3 grid((params.head_dim + kWarps - 1) / kWarps, params.num_kv_heads,
                  params.num_sequences);
  const auto kernel = params.element == DeviceElement::kBFloat16 ? project_values_kernel<BFloat16>
                                                                 : project_values_kernel<Float16>;
  return launch("project_values", kernel, grid, 32 * kWarps, 0, stream, params);
}

}  // namespace kvc

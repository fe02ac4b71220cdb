#include "runtime/kernels/cuda/budget_step.h"

#include "runtime/kernels/cuda/budget_step_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

template <class T>
__global__ void __launch_bounds__(kBudgetThreads) budget_step_kernel(BudgetStep params) {
  DeviceThread thread;
  BudgetStepBlock<T, DeviceThread>(params, thread).run();
}

}  // namespace

LaunchError budget_step_cuda(const BudgetStep& params, void* stream) {
  const BudgetLayout& layout = params.layout;
  if (params.head_dim < 1 || params.head_dim > 256 || params.num_heads % params.num_kv_heads != 0 ||
      layout.num_ring < 1 || layout.num_residual < 0 || layout.num_context < 0) {
    return "budget_step: takes head_dim of at most 256, query heads that KV heads divide, and a "
           "ring of at "
           "least one slot";
  }
  const int shared =
      BudgetShared::bytes(params.num_heads / params.num_kv_heads, layout.slots(), kBudgetThreads);
  return launch("budget_step",
                params.element == DeviceElement::kBFloat16 ? budget_step_kernel<BFloat16>
                                                           : budget_step_kernel<Float16>,
                dim3(params.num_kv_heads, params.num_sequences), kBudgetThreads, shared, stream,
                params);
}

}  // namespace kvc

#include "runtime/kernels/cuda/budget_step.h"

#include "runtime/kernels/cuda/budget_step_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

template <class T, int kHeads>
__global__ void __launch_bounds__(kBudgetThreads, 1) budget_step_kernel(BudgetStep params) {
  DeviceThread thread;
  BudgetStepBlock<T, kHeads, DeviceThread>(params, thread).run();
}

template <class T>
LaunchError launch_step(const BudgetStep& params, void* stream) {
  const int heads = params.num_heads / params.num_kv_heads;
  const int shared =
      BudgetShared::bytes(heads, params.layout.slots(), params.head_dim, kBudgetThreads);
  const auto start = [&](void (*kernel)(BudgetStep)) {
    return launch("budget_step", kernel, dim3(params.num_kv_heads, params.num_sequences),
                  kBudgetThreads, shared, stream, params);
  };
  switch (heads_together(heads)) {
    case 1:
      return start(budget_step_kernel<T, 1>);
    case 2:
      return start(budget_step_kernel<T, 2>);
    case 4:
      return start(budget_step_kernel<T, 4>);
    default:
      return start(budget_step_kernel<T, 8>);
  }
}

}  // namespace

LaunchError budget_step_cuda(const BudgetStep& params, void* stream) {
  const BudgetLayout& layout = params.layout;
  if (params.head_dim < 2 || params.head_dim > 256 || params.head_dim % 2 != 0 ||
      params.num_heads % params.num_kv_heads != 0 || layout.num_ring < 1 ||
      layout.num_residual < 0 || layout.num_context < 0) {
    return "budget_step: takes an even head_dim of at most 256, query heads that KV heads divide, "
           "and a ring of at "
           "least one slot";
  }
  return params.element == DeviceElement::kBFloat16 ? launch_step<BFloat16>(params, stream)
                                                    : launch_step<Float16>(params, stream);
}

}  // namespace kvc

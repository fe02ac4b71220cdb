#include "runtime/kernels/cuda/budget_step.h"

#include "runtime/kernels/cuda/budget_step_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

template <class T, int kHeads, bool kCodes>
__global__ void __launch_bounds__(kBudgetThreads, kHeads <= (kCodes ? 2 : 4) ? 2 : 1)
    budget_step_kernel(BudgetStep params) {
  DeviceThread thread;
  budget_step_body<T, kHeads, kCodes>(params, thread);
}

template <class T, bool kCodes>
LaunchError launch_step(const BudgetStep& params, void* stream) {
  const auto start = [&](void (*kernel)(BudgetStep)) {
    return launch("budget_step", kernel,
                  dim3(params.num_kv_heads, params.num_sequences, params.partials.num_parts),
                  kBudgetThreads, budget_shared_bytes(params, kBudgetThreads), stream, params);
  };
  switch (heads_together(params.num_heads / params.num_kv_heads)) {
    case 1:
      return start(budget_step_kernel<T, 1, kCodes>);
    case 2:
      return start(budget_step_kernel<T, 2, kCodes>);
    case 4:
      return start(budget_step_kernel<T, 4, kCodes>);
    default:
      return start(budget_step_kernel<T, 8, kCodes>);
  }
}

template <class T>
LaunchError launch_step(const BudgetStep& params, void* stream) {
  return is_coded(params.context) ? launch_step<T, true>(params, stream)
                                  : launch_step<T, false>(params, stream);
}

}  // namespace

LaunchError budget_step_cuda(const BudgetStep& params, void* stream) {
  if (LaunchError error = check_budget_step(params); !error.empty()) {
    return error;
  }
  return params.element == DeviceElement::kBFloat16 ? launch_step<BFloat16>(params, stream)
                                                    : launch_step<Float16>(params, stream);
}

}  // namespace kvc

#include "runtime/kernels/cuda/budget_step.h"

#include "runtime/kernels/cuda/budget_attention_body.h"
#include "runtime/kernels/cuda/budget_step_body.h"
#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"

namespace kvc {
namespace {

template <class T, int kHeads>
__global__ void __launch_bounds__(kBudgetThreads, kHeads <= 4 ? 2 : 1)
    budget_attention_kernel(BudgetStep params) {
  DeviceThread thread;
  BudgetAttention<T, kHeads, DeviceThread>(params, thread).run();
}

template <class T>
__global__ void __launch_bounds__(kBudgetThreads, 1) budget_finish_kernel(BudgetStep params) {
  DeviceThread thread;
  BudgetFinish<T, DeviceThread>(params, thread).run();
}

template <class T>
LaunchError launch_attention(const BudgetStep& params, int heads, void* stream) {
  const int shared = BudgetAttentionShared::bytes(heads, params.head_dim, kBudgetThreads);
  const auto start = [&](void (*kernel)(BudgetStep)) {
    return launch("budget_step: attention", kernel,
                  dim3(params.num_kv_heads, params.num_sequences, params.partials.num_parts),
                  kBudgetThreads, shared, stream, params);
  };
  switch (heads_together(heads)) {
    case 1:
      return start(budget_attention_kernel<T, 1>);
    case 2:
      return start(budget_attention_kernel<T, 2>);
    case 4:
      return start(budget_attention_kernel<T, 4>);
    default:
      return start(budget_attention_kernel<T, 8>);
  }
}

template <class T>
LaunchError launch_both(const BudgetStep& params, void* stream) {
  const int heads = params.num_heads / params.num_kv_heads;
  if (LaunchError error = launch_attention<T>(params, heads, stream); !error.empty()) {
    return error;
  }
  return launch("budget_step", budget_finish_kernel<T>,
                dim3(params.num_kv_heads, params.num_sequences), kBudgetThreads,
                BudgetStepShared::bytes(heads, kBudgetThreads), stream, params);
}

}  // namespace

LaunchError budget_step_cuda(const BudgetStep& params, void* stream) {
  if (LaunchError error = check_budget_step(params); !error.empty()) {
    return error;
  }
  return params.element == DeviceElement::kBFloat16 ? launch_both<BFloat16>(params, stream)
                                                    : launch_both<Float16>(params, stream);
}

}  // namespace kvc

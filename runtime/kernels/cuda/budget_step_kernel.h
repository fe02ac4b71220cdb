// Grid: (KV head, sequence, part of the rows). Every block attends to its part; the last of a KV head to be done does what
// follows from all parts.
#pragma once

#include "runtime/kernels/cuda/budget_attention.h"
#include "runtime/kernels/cuda/budget_finish.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

KVC_HOST_DEVICE int budget_shared_bytes(const BudgetStep& params, int threads) {
  const int heads = params.num_heads / params.num_kv_heads;
  const int attention = BudgetAttentionShared::bytes(heads, params.head_dim, threads);
  const int finish = BudgetFinishShared::bytes(heads, threads);
  return attention > finish ? attention : finish;
}

// The same in all threads of a block, whose parts are written.
template <class Thread>
KVC_DEVICE bool all_parts_are_there(const BudgetStep& params, Thread& thread) {
  if (params.partials.num_parts == 1) {
    return true;
  }
  auto* is_last = reinterpret_cast<int*>(thread.shared());
  if (thread.index() == 0) {
    std::uint32_t* arrived =
        params.arrived + thread.block_y() * params.num_kv_heads + thread.block_x();
    *is_last = thread.is_last_of(arrived, params.partials.num_parts) ? 1 : 0;
  }
  thread.sync();
  const bool all = *is_last != 0;
  thread.sync();
  return all;
}

template <class T, int kHeads, bool kCodes>
struct BudgetStepKernel : Kernel<BudgetStep, 256, (kHeads <= (kCodes ? 2 : 4) ? 2 : 1)> {
  static constexpr const char* kName = "budget_step";

  template <class Thread>
  static KVC_DEVICE void run(const BudgetStep& params, Thread& thread) {
    BudgetAttention<T, kHeads, kCodes, Thread>(params, thread).run();
    if (all_parts_are_there(params, thread)) {
      BudgetFinish<T, Thread>(params, thread).run();
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const BudgetStep& params, const Launcher& launcher) {
  if (LaunchError error = check_budget_step(params); !error.empty()) {
    return error;
  }
  const int heads = heads_together(params.num_heads / params.num_kv_heads);
  return with_type(params.element, [&](auto type) {
    return with_flag(is_coded(params.context), [&](auto codes) {
      return with_number<1, 2, 4, 8>(heads, [&](auto together) {
        using Instance =
            BudgetStepKernel<decltype(type), decltype(together)::value, decltype(codes)::value>;
        const int threads = launcher.threads(Instance::kThreads);
        return launcher.template run<Instance>(
            params, {params.num_kv_heads, params.num_sequences, params.partials.num_parts}, threads,
            budget_shared_bytes(params, threads));
      });
    });
  });
}

}  // namespace kvc

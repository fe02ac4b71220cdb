// Grid: (part of the tiles, KV head, sequence). Every block attends to its part, waits for the KV head's others where there are
// such, and does its share of what follows.
#pragma once

#include "runtime/kernels/cuda/budget_attention.h"
#include "runtime/kernels/cuda/budget_finish.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

template <class T, int kHeadDim, int kQueryTiles, bool kCodes>
struct BudgetStepKernel : Kernel<BudgetStep, 128, 1> {
  static constexpr const char* kName = "budget_step";

  static int shared_bytes(const BudgetStep& params, int warps) {
    const int attention = BudgetAttentionShared<kHeadDim, kCodes>::bytes(warps, kQueryTiles);
    const int finish =
        BudgetFinishShared::bytes(params.num_heads / params.num_kv_heads, kHeadDim, 32 * warps);
    return attention > finish ? attention : finish;
  }

  template <class Thread>
  static KVC_DEVICE void run(const BudgetStep& params, Thread& thread) {
    // The part is made anew for each, so that registers are free in between.
    {
      const BudgetPart part = budget_part(params, thread);
      BudgetScores<Thread>(part, budget_rows(part), thread).prefetch();
    }
    BudgetAttention<T, kHeadDim, kQueryTiles, kCodes, Thread>(budget_part(params, thread), thread)
        .run();
    const BudgetPart part = budget_part(params, thread);
    BudgetFinish<T, Thread>(part, budget_rows(part), thread).run();
  }
};

// With as many warps, up to the kernel's, as shared memory takes.
template <class Instance, class Launcher>
LaunchError launch_budget_instance(const BudgetStep& params, const Launcher& launcher) {
  int warps = launcher.threads(Instance::kThreads) / 32;
  while (warps > 1 && Instance::shared_bytes(params, warps) > launcher.shared_bytes()) {
    warps /= 2;
  }
  const int parts = params.partials.num_parts;
  return launcher.template run<Instance>(
      params, {parts, params.num_kv_heads, params.num_sequences, parts > 1}, 32 * warps,
      Instance::shared_bytes(params, warps));
}

template <class Launcher>
LaunchError launch_kernels(const BudgetStep& params, const Launcher& launcher) {
  if (LaunchError error = check_budget_step(params); !error.empty()) {
    return error;
  }
  const bool many_heads = params.num_heads / params.num_kv_heads > 8;
  return with_type(params.element, [&](auto type) {
    return with_flag(is_coded(params.context), [&](auto coded) {
      return with_number<32, 64, 128, 256>(params.head_dim, [&](auto width) -> LaunchError {
        using T = std::decay_t<decltype(type)>;
        constexpr int kWidth = decltype(width)::value;
        constexpr bool kCodes = decltype(coded)::value;
        if constexpr (kWidth <= 128) {
          if (many_heads) {
            return launch_budget_instance<BudgetStepKernel<T, kWidth, 2, kCodes>>(params, launcher);
          }
        }
        return launch_budget_instance<BudgetStepKernel<T, kWidth, 1, kCodes>>(params, launcher);
      });
    });
  });
}

}  // namespace kvc

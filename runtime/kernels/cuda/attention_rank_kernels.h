// Attention in rank space.
#pragma once

#include "runtime/kernels/cuda/attention_ranks_kernel.h"
#include "runtime/kernels/cuda/attention_rebuild_kernel.h"

namespace kvc {

template <class Launcher>
LaunchError launch_kernels(const RankAttention& params, const Launcher& launcher) {
  const LaunchError error = params.has_weights() ? LaunchError{} : launch_rebuild(params, launcher);
  return error.empty() ? launch_sums(params, launcher) : error;
}

}  // namespace kvc

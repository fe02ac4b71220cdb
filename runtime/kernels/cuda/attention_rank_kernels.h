// Attention in rank space: one launch or two, as params.one_pass says.
#pragma once

#include "runtime/kernels/cuda/attention_one_pass_kernel.h"
#include "runtime/kernels/cuda/attention_ranks_kernel.h"
#include "runtime/kernels/cuda/attention_rebuild_kernel.h"

namespace kvc {

template <class Launcher>
LaunchError launch_kernels(const RankAttention& params, const Launcher& launcher) {
  if (params.one_pass.query_tiles > 0) {
    return launch_one_pass(params, launcher);
  }
  const LaunchError error = params.has_weights() ? LaunchError{} : launch_rebuild(params, launcher);
  return error.empty() ? launch_sums(params, launcher) : error;
}

}  // namespace kvc

#include "runtime/kernels/cuda/attention_rank_launch.cuh"

namespace kvc {

LaunchError sum_ranks_cuda(const RankAttention& params, void* stream) {
  if (LaunchError error = check_rank_attention(params); !error.empty()) {
    return error;
  }
  return KVC_LAUNCH_RANK(launch_sums_heads, params, stream);
}

}  // namespace kvc

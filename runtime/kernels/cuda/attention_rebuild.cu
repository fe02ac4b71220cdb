#include "runtime/kernels/cuda/attention_rank_launch.cuh"

namespace kvc {

LaunchError rebuild_scores_cuda(const RankAttention& params, void* stream) {
  if (LaunchError error = check_rank_attention(params); !error.empty()) {
    return error;
  }
  return KVC_LAUNCH_RANK(launch_rebuild_pairs, params, stream);
}

}  // namespace kvc

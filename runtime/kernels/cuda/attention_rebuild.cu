// Scores of keys that are rebuilt.
#include "runtime/kernels/cuda/attention_rebuild_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

template LaunchError launch_rebuild(const RankAttention&, const CudaLauncher&);

LaunchError rebuild_scores_cuda(const RankAttention& params, void* stream) {
  return launch_rebuild(params, CudaLauncher{stream});
}

}  // namespace kvc

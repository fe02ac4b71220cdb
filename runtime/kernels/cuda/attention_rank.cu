// Attention in rank space; its first launch is in attention_rebuild.cu.
#include "runtime/kernels/cuda/attention_rank_kernels.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

extern template LaunchError launch_rebuild(const RankAttention&, const CudaLauncher&);
template LaunchError launch_cuda(const RankAttention&, void*);

}  // namespace kvc

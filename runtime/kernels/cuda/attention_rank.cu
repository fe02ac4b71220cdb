// Attention in rank space; its first launch of two is in attention_rebuild.cu, the only one in attention_one_pass.cu.
#include "runtime/kernels/cuda/attention_rank_kernels.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

extern template LaunchError launch_one_pass(const RankAttention&, const CudaLauncher&);
extern template LaunchError launch_rebuild(const RankAttention&, const CudaLauncher&);
template LaunchError launch_cuda(const RankAttention&, void*);

}  // namespace kvc

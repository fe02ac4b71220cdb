// Attention over latents in one launch.
#include "runtime/kernels/cuda/attention_one_pass_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

template LaunchError launch_one_pass(const RankAttention&, const CudaLauncher&);

}  // namespace kvc

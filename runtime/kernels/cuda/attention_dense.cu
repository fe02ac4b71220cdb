// Attention over the rows of one store; of two: attention_fused.cu.
#include "runtime/kernels/cuda/attention_dense_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

extern template LaunchError launch_dense<2>(const DenseAttention&, const CudaLauncher&);
template LaunchError launch_cuda(const DenseAttention&, void*);

}  // namespace kvc

// Attention over numbers of one store; of two: attention_fused.cu; over codes: attention_dense_codes.cu.
#include "runtime/kernels/cuda/attention_dense_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

extern template LaunchError launch_dense<2, false>(const DenseAttention&, const CudaLauncher&);
template LaunchError launch_dense<1, false>(const DenseAttention&, const CudaLauncher&);
template LaunchError launch_cuda(const NumberAttention&, void*);

}  // namespace kvc

// Attention over codes of one store, or over whatever a step has.
#include "runtime/kernels/cuda/attention_dense_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

extern template LaunchError launch_dense<1, false>(const DenseAttention&, const CudaLauncher&);
extern template LaunchError launch_dense<2, false>(const DenseAttention&, const CudaLauncher&);
extern template LaunchError launch_dense<2, true>(const DenseAttention&, const CudaLauncher&);
template LaunchError launch_dense<1, true>(const DenseAttention&, const CudaLauncher&);
template LaunchError launch_cuda(const DenseAttention&, void*);

}  // namespace kvc

// Attention over codes of two stores.
#include "runtime/kernels/cuda/attention_dense_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

template LaunchError launch_dense<2, true>(const DenseAttention&, const CudaLauncher&);

}  // namespace kvc

// Attention over numbers of two stores.
#include "runtime/kernels/cuda/attention_dense_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

template LaunchError launch_dense<2, false>(const DenseAttention&, const CudaLauncher&);

}  // namespace kvc

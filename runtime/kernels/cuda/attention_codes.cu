// Attention over codes of keys and of values.
#include "runtime/kernels/cuda/attention_codes_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

template LaunchError launch_cuda(const CodedAttention&, void*);

}  // namespace kvc

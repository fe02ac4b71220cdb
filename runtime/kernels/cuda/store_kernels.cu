// Kernels that write and read the rows and tiles of stores.
#include "runtime/kernels/cuda/code_tiles_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"
#include "runtime/kernels/cuda/dequantise_rows_kernel.h"
#include "runtime/kernels/cuda/quantise_rows_kernel.h"

namespace kvc {

template LaunchError launch_cuda(const DecodeTiles&, void*);
template LaunchError launch_cuda(const DequantiseRows&, void*);
template LaunchError launch_cuda(const QuantiseRows&, void*);

}  // namespace kvc

// Kernels that multiply rows of stores.
#include "runtime/kernels/cuda/cuda_launcher.cuh"
#include "runtime/kernels/cuda/merge_scores_kernel.h"
#include "runtime/kernels/cuda/nearest_rows_kernel.h"
#include "runtime/kernels/cuda/project_rows_kernel.h"

namespace kvc {

template LaunchError launch_cuda(const LostRows&, void*);
template LaunchError launch_cuda(const NearestRows&, void*);
template LaunchError launch_cuda(const ProjectRows&, void*);
template LaunchError launch_cuda(const RowCosines&, void*);

}  // namespace kvc

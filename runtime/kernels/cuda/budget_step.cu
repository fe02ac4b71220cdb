// Steps of caches of fixed size.
#include "runtime/kernels/cuda/budget_step_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"

namespace kvc {

template LaunchError launch_cuda(const BudgetStep&, void*);

}  // namespace kvc

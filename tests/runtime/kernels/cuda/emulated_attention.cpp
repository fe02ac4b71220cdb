#include "runtime/kernels/cuda/attention_codes_kernel.h"
#include "runtime/kernels/cuda/attention_combine_kernel.h"
#include "runtime/kernels/cuda/attention_dense_kernel.h"
#include "runtime/kernels/cuda/attention_project_kernel.h"
#include "tests/runtime/kernels/cuda/emulated_launcher.h"

namespace kvc::testing {

template LaunchError launch_emulated(const CodedAttention&, ThreadOrder);
template LaunchError launch_emulated(const CombinePartials&, ThreadOrder);
template LaunchError launch_emulated(const DenseAttention&, ThreadOrder);
template LaunchError launch_emulated(const NumberAttention&, ThreadOrder);
template LaunchError launch_emulated(const ProjectValues&, ThreadOrder);

}  // namespace kvc::testing

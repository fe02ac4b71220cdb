#include "runtime/kernels/cuda/attention_rank_kernels.h"
#include "tests/runtime/kernels/cuda/emulated_launcher.h"

namespace kvc::testing {

template LaunchError launch_emulated(const RankAttention&, ThreadOrder);

}  // namespace kvc::testing

// Benchmarks of attention kernels on the current GPU.
#pragma once

#include "tests/runtime/kernels/cuda/gpu_timing.h"

namespace kvc::testing {

// Throws std::runtime_error where a launch fails.
TimingReport bench_attention();

}  // namespace kvc::testing

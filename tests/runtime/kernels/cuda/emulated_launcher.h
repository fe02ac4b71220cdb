// Launches through the CPU emulator.
#pragma once

#include <algorithm>
#include <cstddef>

#include "runtime/kernels/cuda/kernel.h"
#include "tests/runtime/kernels/cuda/emulated_backend.h"

namespace kvc::testing {

struct EmulatedLauncher {
  ThreadOrder order;

  // More than one warp, and fewer than a GPU's: blocks end within rows, and tests take less time.
  int threads(int most) const { return std::min(most, 64); }
  int shared_bytes() const { return kEmulatedSharedBytes; }

  template <class Kernel>
  LaunchError run(const typename Kernel::Params& params, const LaunchGrid& grid, int threads,
                  int shared_bytes = 0) const {
    run_grid(grid, threads, static_cast<std::size_t>(std::max(shared_bytes, 16)), order,
             [&](EmulatedThread& thread) { Kernel::run(params, thread); });
    return {};
  }
};

template <class Params>
LaunchError launch_emulated(const Params& params, ThreadOrder order) {
  return launch_kernels(params, EmulatedLauncher{order});
}

}  // namespace kvc::testing

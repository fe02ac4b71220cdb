#include "tests/runtime/gpu/emulated_executor.h"

#include <gtest/gtest.h>

#include "tests/runtime/kernels/cuda/emulated_backend.h"

namespace kvc::testing {

void EmulatedExecutor::run(const StepProgram& program) {
  for (const KernelLaunch& launch : program) {
    emulate_launch(launch, ThreadOrder::kForward);
  }
}

void EmulatedExecutor::wait(int under_way) { EXPECT_TRUE(under_way == 0 || under_way == 1); }

}  // namespace kvc::testing

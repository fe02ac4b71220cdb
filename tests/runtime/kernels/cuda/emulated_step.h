// Steps through the CPU emulator, in CPU memory.
#pragma once

#include "runtime/kernels/cuda/step_program.h"
#include "tests/runtime/kernels/cuda/emulated_thread.h"

namespace kvc::testing {

// Throws std::runtime_error where a launch is refused.
void emulate_launch(const StepLaunch& launch, ThreadOrder order);

}  // namespace kvc::testing

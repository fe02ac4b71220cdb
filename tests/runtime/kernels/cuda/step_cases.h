// Cases of the kernels of a decoding step, on whatever runs them. No GoogleTest, as in kernel_cases.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/kernels/cuda/step_program.h"
#include "tests/runtime/kernels/cuda/kernel_memory.h"

namespace kvc::testing {

// Throws std::runtime_error where a launch fails.
using RunStep = std::function<void(const StepLaunch&)>;

struct StepCase {
  std::string name;  // letters, digits and _
  // Empty, or what differs and by how much.
  std::function<std::string(KernelMemory&, const RunStep&)> run;
};

std::vector<StepCase> append_cases();  // rows of stores
std::vector<StepCase> step_cases();    // these, products, norms, embeddings
std::vector<StepCase> sample_cases();  // tokens

}  // namespace kvc::testing

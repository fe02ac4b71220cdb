// Steps under a budget of caches as Llama-3.1-8B has them.
#pragma once

#include <vector>

#include "tests/runtime/kernels/cuda/gpu_backend.h"

namespace kvc::testing {

constexpr int kBudgetHeads = 32, kBudgetKvHeads = 8, kBudgetHeadDim = 128;

// One layer's step of `sequences` that keep `slots` tokens each, bfloat16, for each number of tokens that have come.
std::vector<double> budget_step_milliseconds(GpuBackend& memory, int sequences, int slots,
                                             const std::vector<int>& tokens);

}  // namespace kvc::testing

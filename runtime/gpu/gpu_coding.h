// Codes tokens of coded layers, and of plain ones under integer types, on a GPU after they left the window, 32 at a
// time.
#pragma once

#include <cstddef>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"

namespace kvc {

// Both do nothing for a cache without codes. At the end of a prompt, whose tokens are exact:
void code_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                     StepExecutor& executor);
// After a step, when each sequence's counts include the next step's token:
void code_gpu_blocks(const GpuModel& model, GpuCache& cache, StepExecutor& executor);

}  // namespace kvc

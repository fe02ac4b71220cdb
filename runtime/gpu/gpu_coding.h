// Tokens of coded layers, and of plain ones under integer types, that become codes on a GPU once they have left the
// window, 32 at a time.
#pragma once

#include <cstddef>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"

namespace kvc {

// Of a cache without codes nothing. At the end of a prompt, whose tokens the cache holds exactly:
void code_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                     StepExecutor& executor);
// A step has fed one more token to every sequence, whose counts include that of the next step:
void code_gpu_blocks(const GpuModel& model, GpuCache& cache, StepExecutor& executor);

}  // namespace kvc

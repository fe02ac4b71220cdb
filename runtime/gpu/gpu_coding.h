// Codes tokens of coded layers, and of plain ones under integer types, on a GPU after they left the window, 32 at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"

namespace kvc {

// Whether every layer reads a prompt through codes before the next one does; otherwise such prompts are read in pieces, whose
// tokens become codes before the next piece. dtype: of plain layers.
bool codes_prompts_by_layer(const KvPlan& plan, KvDtype dtype);

// Where codes_prompts_by_layer: codes what has left the window of a coded layer once the sequence has `num_tokens` instead of
// `num_before`. All of the prompt's tokens stay exact besides, and are counted as such, until code_gpu_prompt().
void code_gpu_piece(const GpuModel& model, GpuCache& cache, int layer, std::size_t sequence,
                    std::int64_t num_before, std::int64_t num_tokens, StepExecutor& executor);

// Both do nothing for a cache without codes. At the end of a prompt, whose tokens are exact:
void code_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                     StepExecutor& executor);
// After a step, when each sequence's counts include the next step's token:
void code_gpu_blocks(const GpuModel& model, GpuCache& cache, StepExecutor& executor);

}  // namespace kvc

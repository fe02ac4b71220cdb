// Token policies on a GPU: at the end of a prompt, which is read layer by layer, and when generation exceeds a budget
// for the first time. The kernel of runtime/kernels/cuda/budget_step.h does all later steps.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/engine.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/gpu_prompt.h"
#include "runtime/gpu/step_executor.h"

namespace kvc {

// Error naming the unsupported part of the policy, with the way out.
void check_gpu_policy(const TokenPolicy& policy, const CacheTypes& types, const ModelConfig& config,
                      const KvPlan& plan);

// As read_gpu_prompt(), for a cache under a policy: one layer's full keys and values exist at a time, beside what
// earlier layers keep.
at::Tensor read_kept_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                            const std::vector<std::int64_t>& ids, const GpuPromptOptions& options,
                            StepExecutor& executor);
// A step has fed one more token to every sequence. Under a running policy those whose budget it exceeds are brought into the
// layout, once; under the others whole blocks that have left the window become codes. num_tokens: of each now. Without a
// policy nothing.
void end_policy_step(const GpuModel& model, GpuCache& cache,
                     const std::vector<std::int64_t>& num_tokens, StepExecutor& executor);

// Bytes beside the cache for a batch: a prompt's hidden states, its queries and their products, and the data that a
// step passes between its launches.
std::int64_t policy_work_bytes(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                               const ModelConfig& config, const std::vector<std::int64_t>& lengths,
                               std::int64_t new_tokens, int multiprocessors);

}  // namespace kvc

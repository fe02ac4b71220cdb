// Reads prompts on a GPU with the keys and values of similar ones (runtime/reuse).
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/checkpoint.h"
#include "runtime/engine.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/reuse/prompt_reuse.h"

namespace kvc {

// Error naming what cannot be combined with reuse, with the way out.
void check_gpu_reuse(const ReuseOptions& options, const TokenPolicy& policy, KvDtype kv_dtype,
                     const ModelConfig& config, const KvPlan& plan);

// Null without donors. The model must outlive it. Shares donors with the CPU's engine in the same dtypes.
std::unique_ptr<PromptReuse> gpu_reuse(const Checkpoint& checkpoint, const GpuModel& model,
                                       const EngineOptions& options);

// Reads a sequence's first prompt with a similar one's rows if there is one. Returns logits of its last token, [1,
// vocab_size], or nothing if it must be read in full. Throws Interrupted.
std::optional<at::Tensor> read_reused_prompt(const GpuModel& model, PromptReuse& reuse,
                                             GpuCache& cache, std::size_t sequence,
                                             const std::vector<std::int64_t>& ids,
                                             const Stopped& stopped, ReuseReport& report);
// Stores a sequence's first prompt as a donor; it was read in full and is exact.
void keep_gpu_prompt(PromptReuse& reuse, const GpuCache& cache, std::size_t sequence,
                     const std::vector<std::int64_t>& ids);

// Bytes beside the cache for a prompt of that many tokens and a donor of equal length.
std::int64_t reuse_work_bytes(const ModelConfig& config, std::int64_t num_tokens);

}  // namespace kvc

// Prompts that are read on a GPU with the keys and values of similar ones (runtime/reuse).
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

// Error naming what does not go beside reuse, with the way out.
void check_gpu_reuse(const ReuseOptions& options, const TokenPolicy& policy, KvDtype kv_dtype,
                     const ModelConfig& config, const KvPlan& plan);

// Null without donors. The model outlives it. Its donors are those of the CPU's engine in the same types.
std::unique_ptr<PromptReuse> gpu_reuse(const Checkpoint& checkpoint, const GpuModel& model,
                                       const EngineOptions& options);

// Reads a sequence's first prompt with a similar one's rows where there is one. Logits of its last token, [1, vocab_size], or
// nothing: it is to be read as a whole. Throws Interrupted.
std::optional<at::Tensor> read_reused_prompt(const GpuModel& model, PromptReuse& reuse,
                                             GpuCache& cache, std::size_t sequence,
                                             const std::vector<std::int64_t>& ids,
                                             const Stopped& stopped, ReuseReport& report);
// Keeps a sequence's first prompt, which was read as a whole and is there exactly.
void keep_gpu_prompt(PromptReuse& reuse, const GpuCache& cache, std::size_t sequence,
                     const std::vector<std::int64_t>& ids);

// Bytes beside the cache that a prompt of so many tokens takes, whose donor is as long.
std::int64_t reuse_work_bytes(const ModelConfig& config, std::int64_t num_tokens);

}  // namespace kvc

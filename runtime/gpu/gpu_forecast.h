// Forecast of a batch's cache on a GPU, before anything is read.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "model/config.h"
#include "runtime/gpu/gpu_cache.h"

namespace kvc {

// The most bytes while prompts of `lengths` tokens are read one after the other, and then generate `new_tokens`
// together: GpuCache::bytes() of all, and what a layer stores twice while it is decided. Merges depend on the text,
// so each store may need a page more, which is included.
struct GpuCacheBytes {
  std::int64_t most = 0, generating = 0;  // generating: once all prompts have been read
};
GpuCacheBytes gpu_cache_forecast(const KvPlan& plan, KvDtype dtype, std::int64_t page_tokens,
                                 const std::vector<std::int64_t>& lengths, std::int64_t new_tokens,
                                 const TokenPolicy& policy = {});
inline std::int64_t gpu_cache_bytes(const KvPlan& plan, KvDtype dtype, std::int64_t page_tokens,
                                    const std::vector<std::int64_t>& lengths,
                                    std::int64_t new_tokens, const TokenPolicy& policy = {}) {
  return gpu_cache_forecast(plan, dtype, page_tokens, lengths, new_tokens, policy).most;
}

// The same for a cache's only sequence, which has `num_tokens`, and a further turn: a prompt of `length` tokens and
// `new_tokens` new ones.
GpuCacheBytes gpu_turn_forecast(const GpuCache& cache, std::int64_t num_tokens, std::int64_t length,
                                std::int64_t new_tokens);

// Scratch memory of latent groups and coded layers: float32 keys, values and latents of tokens during encoding,
// and the data that a step passes between its launches.
std::int64_t group_work_bytes(const KvPlan& plan, const ModelConfig& config,
                              std::int64_t num_sequences, std::int64_t longest_prompt,
                              std::int64_t new_tokens, int multiprocessors);
// Where prompts are read through codes: one layer's rows of codes, scores of a block of queries, masks of a piece, and first
// tokens. piece: tokens.
std::int64_t coded_prompt_bytes(const KvPlan& plan, const ModelConfig& config,
                                std::int64_t num_sequences, std::int64_t longest_prompt,
                                std::int64_t piece);

}  // namespace kvc

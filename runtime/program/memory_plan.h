// kvrun --plan: what the KV caches of a run and its process will take, before a weight is read.
#pragma once

#include <cstdint>
#include <optional>

#include "core/json.h"
#include "runtime/program/prompts.h"
#include "runtime/program/run.h"

namespace kvc {

// On standard output, as text or (--json) as to_json() has it. Error with the numbers where --memory is too little.
void print_memory_plan(const RunOptions& options);

// What the original model's cache of a sequence would allocate, in the run's pages.
std::int64_t original_allocation(const KvPlan& plan, std::int64_t num_tokens,
                                 std::int64_t page_tokens, KvDtype own);

struct MemoryPlan {
  KvDtype kv_dtype{};
  std::int64_t tokens = 0;              // at the end
  std::int64_t reading = 0, end = 0;    // most bytes while prompts are read, and after that
  std::int64_t original = 0;            // bytes of the model's own cache
  std::int64_t expansion = 0;           // of all that can be rebuilt beside latents
  std::optional<std::int64_t> limit{};  // --memory, under which:
  std::int64_t expanded_groups = 0, num_groups = 0, peak = 0;
  std::optional<std::int64_t> process{};  // most of the whole process; on a CPU
};
// {"kv_dtype", "tokens", "reading_bytes", "end_bytes", "original_bytes", "kept_ratio", "expansion_bytes"}; under --memory also
// {"memory_bytes", "expanded_groups", "num_groups", "peak_bytes"}; on a CPU {"process_bytes"}
Json to_json(const MemoryPlan& plan);
// With --device cuda, which needs none; nothing is ever rebuilt there. Error naming what the GPU runtime does not do.
MemoryPlan gpu_memory_plan(const RunOptions& options, const Prompts& prompts);

}  // namespace kvc

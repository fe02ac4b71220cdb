// kvrun --device cuda --plan: what the KV caches of a run will take on a GPU, which needs none.
#pragma once

#include "core/json.h"
#include "runtime/prompts.h"
#include "runtime/run.h"

namespace kvc {

// As print_memory_plan() (runtime/memory/memory_plan.h) says; nothing is ever rebuilt beside latents. Error naming
// what the GPU runtime does not do, or the numbers where --memory is too little.
Json gpu_plan_json(const RunOptions& options, const Prompts& prompts);

}  // namespace kvc

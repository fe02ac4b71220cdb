// kvrun --device cuda --plan: forecast of a run's KV caches on a GPU; requires no GPU.
#pragma once

#include "core/json.h"
#include "runtime/program/prompts.h"
#include "runtime/program/run.h"

namespace kvc {

// As print_memory_plan() (runtime/memory/memory_plan.h); nothing is rebuilt beside latents. Error naming what the
// GPU runtime does not support, or with the numbers if --memory is too small.
Json gpu_plan_json(const RunOptions& options, const Prompts& prompts);

}  // namespace kvc

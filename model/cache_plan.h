// What a model's own KV cache holds.
#pragma once

#include <string>

#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Every layer plain: as the model itself caches it.
KvPlan plain_plan(const ModelConfig& config);

// The type of the model's own cache, whatever a run computes in: the checkpoint's (float32 for float64), or
// bfloat16 where nothing says. kept_ratio compares with a cache of this type.
KvDtype cache_dtype(const ModelConfig& config);

// One sentence on why methods that factorise key and value projections do not apply; empty where they do.
std::string why_not_factorised(const ModelConfig& config);
// Throws Error "<subject>: <that sentence>", if there is one.
void require_key_value_projections(const ModelConfig& config, const std::string& subject);

}  // namespace kvc

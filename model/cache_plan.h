// What a model's own KV cache holds.
#pragma once

#include <string>

#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Every layer plain, as in the model's own cache.
KvPlan plain_plan(const ModelConfig& config);

// Dtype of the model's own cache, independent of a run's compute dtype: the checkpoint's (float32 for
// float64), or bfloat16 if unknown. kept_ratio is relative to a cache of this dtype.
KvDtype cache_dtype(const ModelConfig& config);

// Why methods that factorise key and value projections do not apply, in one sentence; empty if they do.
std::string why_not_factorised(const ModelConfig& config);
// Throws Error "<subject>: <that sentence>" if there is one.
void require_key_value_projections(const ModelConfig& config, const std::string& subject);

}  // namespace kvc

// Features of the GPU runtime, and what it refuses by name.
#pragma once

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "model/config.h"
#include "runtime/engine.h"

namespace kvc {

// Error naming unsupported parts of the model, the plan or the options, with the way out.
void check_gpu_model(const ModelConfig& config, const KvPlan& plan);
void check_gpu_options(const EngineOptions& options, const CacheTypes& types,
                       const ModelConfig& config, const KvPlan& plan);

// Error where a policy's sequences do not go on behind what was generated, with the way out.
void check_gpu_turns(const TokenPolicy& policy);

}  // namespace kvc

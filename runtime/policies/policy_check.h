// Models and caches that support token policies and selective reconstruction.
#pragma once

#include <optional>

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "model/config.h"

namespace kvc {

// Throws Error naming what the policy cannot be combined with, and an alternative.
void check_token_policy(const TokenPolicy& policy, const KvPlan& plan, const ModelConfig& config,
                        KvDtype dtype);

// The plan with a run's setting. Throws Error, with the way out, if nothing is rebuilt from principal directions.
KvPlan with_selective(KvPlan plan, const std::optional<SelectiveReconstruction>& selective,
                      const TokenPolicy& policy, const ModelConfig& config);

}  // namespace kvc

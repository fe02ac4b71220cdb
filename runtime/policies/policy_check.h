// Which models and caches a token policy applies to, and selective reconstruction.
#pragma once

#include <optional>

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "model/config.h"

namespace kvc {

// Throws Error naming what the policy cannot be combined with, and what can.
void check_token_policy(const TokenPolicy& policy, const KvPlan& plan, const ModelConfig& config,
                        KvDtype dtype);

// The plan as a run sets it. Throws Error where nothing is rebuilt that could be chosen from, naming the way out.
KvPlan with_selective(KvPlan plan, const std::optional<SelectiveReconstruction>& selective,
                      const TokenPolicy& policy, const ModelConfig& config);

}  // namespace kvc

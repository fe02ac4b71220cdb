// Which models and caches a token policy applies to.
#pragma once

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "model/config.h"

namespace kvc {

// Throws Error naming what the policy cannot be combined with, and what can.
void check_token_policy(const TokenPolicy& policy, const KvPlan& plan, const ModelConfig& config,
                        KvDtype dtype);

}  // namespace kvc

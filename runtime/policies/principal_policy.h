// Groups of principal directions: tokens that get latents, and when a request gets a basis.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan_bytes.h"

namespace kvc {

enum class PrincipalStep { kKeepExact, kProject, kNewBasis };

// Decides what happens to every group's counts[g] oldest undecided tokens. Calibrated directions encode them. A
// request's basis is made if it takes fewer bytes than the tokens' keys and values, for all groups or none; tokens
// after the first basis follow plan.request. `tokens` [num_groups]
PrincipalStep principal_step(const KvPlan& plan, const std::vector<GroupTokens>& tokens,
                             const std::vector<std::int64_t>& counts, KvDtype dtype);
// The same, applied to the counts.
PrincipalStep apply_principal_step(const KvPlan& plan, const std::vector<std::int64_t>& counts,
                                   KvDtype dtype, std::vector<GroupTokens>& tokens);

// Error if generated blocks are too short for a basis of their own to save anything.
void check_generated_block(const KvPlan& plan, KvDtype dtype);
}  // namespace kvc

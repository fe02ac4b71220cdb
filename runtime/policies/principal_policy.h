// Groups of principal directions: which tokens get latents, and when a request gets a basis.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"

namespace kvc {

enum class PrincipalStep { kKeepExact, kProject, kNewBasis };

// What becomes of the counts[g] oldest undecided tokens of every group. Calibrated directions encode them. A request's basis
// is made where that takes fewer bytes than the tokens' keys and values, for all groups or none; tokens that
// come after the first basis are treated as plan.request says. `tokens` [num_groups]
PrincipalStep principal_step(const KvPlan& plan, const std::vector<GroupTokens>& tokens,
                             const std::vector<std::int64_t>& counts, KvDtype dtype);
// The same, applied to the counts.
PrincipalStep apply_principal_step(const KvPlan& plan, const std::vector<std::int64_t>& counts,
                                   KvDtype dtype, std::vector<GroupTokens>& tokens);

// Error where generated blocks are too short for a basis of their own to save anything.
void check_generated_block(const KvPlan& plan, KvDtype dtype);
}  // namespace kvc

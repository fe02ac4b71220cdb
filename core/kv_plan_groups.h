// What must be consistent in the latent groups of a plan; part of KvPlan::check.
#pragma once

#include "core/kv_plan.h"

namespace kvc {

// Ranks and merge weights of one group.
void check_group(const KvPlan& plan, const LatentGroup& group);
// The groups' basis, and what the policy may be with it.
void check_basis(const KvPlan& plan);

}  // namespace kvc

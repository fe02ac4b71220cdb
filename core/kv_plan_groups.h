// What the latent groups of a plan hold, and what must be consistent in them (part of KvPlan::check).
#pragma once

#include "core/kv_plan.h"

namespace kvc {

// One layer's part of a group's y: its keys and its values; of a model's own latents (KvPlan::own_widths) those, as
// they are before their norm, in the place of keys, and nothing else. With c = own_widths.key such a group takes, its
// d = own_widths.value numbers of rotary keys always exact,
//   merged * (rank + G*d)*b + (unmerged + pending) * G*(c + d)*b + bases * G * c * rank * b
KvWidths grouped_widths(const KvPlan& plan);

// Ranks and merge weights of one group.
void check_group(const KvPlan& plan, const LatentGroup& group);
// The groups' basis, and what the policy may be with it.
void check_basis(const KvPlan& plan);

}  // namespace kvc

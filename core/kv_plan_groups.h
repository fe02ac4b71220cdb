// Bytes of a plan's latent groups, and their consistency (part of KvPlan::check).
#pragma once

#include "core/kv_plan.h"

namespace kvc {

// One layer's part of a group's y: its keys and values. For a model's own latents (KvPlan::own_widths): the latents
// before their norm, in place of keys. With c = own_widths.key, and d = own_widths.value numbers of rotary keys that
// stay exact, such a group takes
//   merged * (rank + G*d)*b + (unmerged + pending) * G*(c + d)*b + bases * G * c * rank * b
KvWidths grouped_widths(const KvPlan& plan);

// Ranks and merge weights of one group.
void check_group(const KvPlan& plan, const LatentGroup& group);
// The groups' basis, and the policies that it allows.
void check_basis(const KvPlan& plan);

}  // namespace kvc

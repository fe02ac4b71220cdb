// Which factors of a latent group are stored in 8 bits.
#pragma once

#include "convert/factor_choice.h"
#include "convert/latent/group_fit.h"
#include "core/kv_plan.h"

namespace kvc {

// Appends the choices for a joint group. `tensors` are its factors, `fit` has seen the calibration text.
void choose_forms(const KvPlan& plan, int group, const GroupFit& fit, NamedTensors& tensors);
// For a split group, of one layer.
void choose_split_forms(const FormSample& sample, NamedTensors& tensors);

}  // namespace kvc

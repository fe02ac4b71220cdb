// Cost of factorising a plan's latent groups, from the config alone.
#pragma once

#include <cstdint>

#include "convert/convert.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Peak of one group's factorisation: its stacked weights, Gram matrices and LAPACK's workspace, beside one group's
// layers in float32 and the boundary of hidden states. Estimated bytes.
std::int64_t peak_memory(const ModelConfig& config, const KvPlan& plan);
// Seconds on two cores, by measured constants of the eigendecomposition and of float64 products.
double factorisation_seconds(const ModelConfig& config, const ConvertSettings& settings,
                             const KvPlan& plan);

}  // namespace kvc

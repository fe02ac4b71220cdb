// The saving of a planned conversion compared with what it adds to the weights.
#pragma once

#include "convert/convert.h"
#include "core/kv_plan.h"
#include "core/payback.h"
#include "model/config.h"

namespace kvc {

// For caches of the plan's context. factor_bytes: estimated (convert/factor_bytes.h), or those of an
// export.
Payback plan_payback(const KvPlan& plan, const ModelConfig& config, const ConvertSettings& settings,
                     std::int64_t factor_bytes);
Payback estimated_payback(const KvPlan& plan, const ModelConfig& config,
                          const ConvertSettings& settings);

// Throws Error, with the numbers and settings that help, if a conversion would take more memory than the
// original even with four times the tokens in flight.
void check_pays(const KvPlan& plan, const ModelConfig& config, const ConvertSettings& settings);

}  // namespace kvc

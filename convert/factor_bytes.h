// Bytes that the factors of a conversion add to a checkpoint.
#pragma once

#include <cstdint>

#include "convert/convert.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Estimates from a plan before its factors exist, in the form that --factor-dtype auto usually chooses: float16, and 8
// bits for coded blocks of up to kMostCodedBasisChannels (model/basis_codes.h).
//
// For plan.coded[block], whose bits may be spread evenly: measurement decides later which coefficients get any.
std::int64_t estimated_block_bytes(const KvPlan& plan, int block);
// For plan.groups[group], less the projections that its factors replace (Palu). May be negative.
std::int64_t estimated_group_bytes(const KvPlan& plan, int group, const ModelConfig& config,
                                   const ConvertSettings& settings);
// For one of plan.fused, less its projections. May be negative.
std::int64_t estimated_fused_bytes(const KvPlan& plan, const FusedLayer& layer,
                                   const ModelConfig& config);
// For the whole plan. Request bases and paired layers have no factors.
std::int64_t estimated_factor_bytes(const KvPlan& plan, const ModelConfig& config,
                                    const ConvertSettings& settings);

}  // namespace kvc

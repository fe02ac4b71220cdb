// Bytes that the factors of a conversion add to a checkpoint: what its cache has to save before anything is gained.
#pragma once

#include <cstdint>

#include "convert/convert.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Estimates from a plan whose factors are not known yet, in the form that --factor-dtype auto usually chooses: float16,
// and 8 bits for coded blocks of up to kMostCodedBasisChannels (model/basis_codes.h).
//
// Of plan.coded[block], whose bits may be spread evenly: which coefficients get any is known only once they have
// been measured.
std::int64_t estimated_block_bytes(const KvPlan& plan, int block);
// Of plan.groups[group], less the projections that its factors replace (Palu). May be negative.
std::int64_t estimated_group_bytes(const KvPlan& plan, int group, const ModelConfig& config,
                                   const ConvertSettings& settings);
// Of one of plan.fused, less its projections. May be negative.
std::int64_t estimated_fused_bytes(const KvPlan& plan, const FusedLayer& layer,
                                   const ModelConfig& config);
// Of all of them together. Request bases and paired layers have no factors.
std::int64_t estimated_factor_bytes(const KvPlan& plan, const ModelConfig& config,
                                    const ConvertSettings& settings);

}  // namespace kvc

// Plans of groups whose latents are coefficients of principal directions (xKV, its calibrated variant, PCA), of keys
// and values or of a model's own latents, which are joint.
#pragma once

#include <vector>

#include "convert/convert.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Ranks from --key-rank and --value-rank, or those for which a text of --context tokens keeps --kept-ratio
// of its bytes. Groups that would not shrink stay plain. Throws Error with the numbers, unless `force`.
KvPlan make_principal_plan(const ModelConfig& config, const ConvertSettings& settings,
                           LatentBasis basis, bool force);

// As Method::least_kept_ratio; for given ranks their ratio.
double least_principal_kept_ratio(const ModelConfig& config, const ConvertSettings& settings,
                                  LatentBasis basis);

// Sets what encoding every token prescribes.
void fix_principal_settings(ConvertSettings& settings);

// --rank-multiple, or its default: whole groups of channels under one scale for integer caches.
std::int64_t principal_rank_multiple(const ModelConfig& config, const ConvertSettings& settings);

}  // namespace kvc

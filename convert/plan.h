// Plans, what they keep, and what they gain against what they add to the weights.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/convert.h"
#include "core/kv_plan_bytes.h"
#include "core/payback.h"
#include "model/config.h"

namespace kvc {

// From config alone, or with scores [num_layers, 2] (key, value). Throws Error with the numbers and the nearest
// settings that work when the cache would grow or the target cannot be reached, unless `force`.
KvPlan make_plan(const ModelConfig& config, const ConvertSettings& settings, bool force,
                 const std::vector<double>* fisher_scores = nullptr);

// All layers plain, under the method's name.
KvPlan base_plan(const ModelConfig& config, const ConvertSettings& settings);

// Bytes of the cache divided by the bytes of the model's own keys and values in the same type (16 bits for integer types):
// once with every mergeable token merged, once with none merged. This equals kept_ratio if the type is the model's own. Sinks
// and window are exact in both. Pairs of layers merge all tokens in both, and retain either no tokens or the largest allowed
// number.
struct KeptRange {
  double lowest = 1, highest = 1;
};
// For the whole cache of one sequence of `num_tokens`.
KeptRange kept_range(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype);
// One group compared with its own plain KV.
KeptRange group_kept_range(const KvPlan& plan, int group, std::int64_t num_tokens, KvDtype dtype);
// Share of the mergeable tokens that stays unmerged: q = (c - lowest) / (highest - lowest), in [0,
// 1].
double unmerged_share(double target, const KeptRange& range);

// Bytes of one token of a group: as plain KV, not merged, merged.
struct TokenBytes {
  std::int64_t plain = 0, unmerged = 0, merged = 0;
};
TokenBytes token_bytes(const KvPlan& plan, int group, KvDtype dtype);

// What a pair of layers holds after a prompt of `num_tokens`: nothing retained, or as much as may be.
PairTokens merged_pair(const KvPlan& plan, std::int64_t num_tokens, bool retains);

// --kv-dtype, or the dtype of the model's own cache.
KvDtype planned_dtype(const ModelConfig& config, const ConvertSettings& settings);
// Tokens of the planned cache.
std::int64_t plan_context(const ModelConfig& config, const ConvertSettings& settings);
// Cached tokens of all sequences together. A conversion is refused if it saves memory only above four times as many.
std::int64_t tokens_in_flight(const ModelConfig& config, const ConvertSettings& settings);
// Bytes of the model's own keys and values in the planned dtype over those in its own: converts ratios of
// kept_range.
double planned_type_scale(const KvPlan& plan, const ModelConfig& config,
                          const ConvertSettings& settings);
// Ratio of a cache of `num_tokens` at the plan's target, as kept_range.
double planned_kept_ratio(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype);
// A sentence where the plan keeps over a tenth more or less than settings.kept_ratio; else empty.
std::string unmet_target_note(const KvPlan& plan, const ModelConfig& config,
                              const ConvertSettings& settings);

// A sentence where a plan saves memory only above the `expected` tokens_in_flight(); else empty.
std::string late_payback_note(const Payback& gain, std::int64_t expected);

// For caches of the plan's context. factor_bytes: estimated, or those of an export.
Payback plan_payback(const KvPlan& plan, const ModelConfig& config, const ConvertSettings& settings,
                     std::int64_t factor_bytes);
Payback estimated_payback(const KvPlan& plan, const ModelConfig& config,
                          const ConvertSettings& settings);

// Bytes that the factors of a conversion add to a checkpoint.
// Estimates from a plan before its factors exist, in the form that --factor-dtype auto usually chooses: 8 bits, 16 for
// a share of the coefficients (model/basis_codes.h, model/coefficient_codes.h).
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

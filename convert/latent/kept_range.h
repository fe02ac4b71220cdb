// Kept ratios that a plan can reach, and how much must merge for a given one.
#pragma once

#include <cstdint>

#include "convert/convert.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Bytes of a cache over those of the model's own keys and values in the same dtype (16 bits for integers): with every
// possible token merged, and with none. In the model's own dtype this is kept_ratio. Sinks and window are exact in
// both. Pairs of layers merge all tokens in both, and retain none or the most.
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

// --kv-dtype, or the dtype of the model's own cache.
KvDtype planned_dtype(const ModelConfig& config, const ConvertSettings& settings);
// Tokens of the planned cache.
std::int64_t plan_context(const ModelConfig& config, const ConvertSettings& settings);
// Tokens of all sequences, where the saving must exceed the factors.
std::int64_t tokens_in_flight(const ModelConfig& config, const ConvertSettings& settings);
// Bytes of the model's own keys and values in the planned dtype over those in its own: converts ratios of
// kept_range.
double planned_type_scale(const KvPlan& plan, const ModelConfig& config,
                          const ConvertSettings& settings);
// Ratio of a cache of `num_tokens` at the plan's target, as kept_range.
double planned_kept_ratio(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype);

}  // namespace kvc

// Plans of coded caches from a config and settings: the budget of bits, or a refusal with the numbers
// and settings that work.
#pragma once

#include <cstdint>
#include <string>

#include "convert/coded/coded_settings.h"
#include "convert/methods/methods.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Bits of one coded token over all blocks for which a cache of the plan's context has settings.kept_ratio,
// after exact tokens and the gains of the plan's blocks; at most 8 bits per channel. Negative if these
// alone are too large.
std::int64_t coded_bit_budget(const ModelConfig& config, const ConvertSettings& settings,
                              const KvPlan& plan);
// The smallest budget that a conversion accepts.
std::int64_t least_coded_bits(const ModelConfig& config, const ConvertSettings& settings,
                              const KvPlan& plan);
// kept_ratio of a cache of the plan's context with that budget; 1 if no token would be coded.
double least_coded_kept_ratio(const PlanRequest& request);
// kept_ratio of a sequence of `num_tokens`.
double coded_kept_ratio(const ModelConfig& config, const KvPlan& plan, std::int64_t num_tokens);

// What stays exact in a cache of so many tokens: "36 stay exact (the first 4, ...)".
std::string exact_tokens_text(const KvPlan& plan, std::int64_t context);

// As Method::make_plan. Bits are spread evenly over all channels: their sum is known now; measurement
// decides later which coefficients get them.
KvPlan make_coded_plan(const PlanRequest& request);

// As Method::fill_table.
void fill_coded_table(PlanTable& table, const PlanRequest& request);
// Says that a cache keeps less than its target, because no code is wider than 8 bits; empty if it does not.
std::string capped_bits_note(double kept_ratio, const ConvertSettings& settings);

}  // namespace kvc

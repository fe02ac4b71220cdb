// Paired layers in the table of --plan.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/plan_table.h"
#include "core/kv_plan_bytes.h"

namespace kvc {

// The pair that begins at this layer.
PlanRow paired_row(const PlanTable& table, int first_layer);
// What is merged and what is kept besides.
void add_paired_notes(PlanTable& table);

// What every pair holds after a prompt of `num_tokens`: nothing retained, or as much as may be. Empty where no
// layers are paired.
std::vector<PairTokens> merged_pairs(const KvPlan& plan, std::int64_t num_tokens, bool retains);

}  // namespace kvc

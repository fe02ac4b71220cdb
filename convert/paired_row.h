// Paired layers in the table of --plan.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/plan_table.h"

namespace kvc {

// The pair that begins at this layer.
PlanRow paired_row(const PlanTable& table, int first_layer);
// Notes on what is merged and what is also kept.
void add_paired_notes(PlanTable& table);

// Tokens of every pair after a prompt of `num_tokens`, with none or the most retained. Empty if no layers are
// paired.
std::vector<PairTokens> merged_pairs(const KvPlan& plan, std::int64_t num_tokens, bool retains);

}  // namespace kvc

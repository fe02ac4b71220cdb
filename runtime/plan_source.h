// The KV plan of a checkpoint: its own if it was converted, else plain.
#pragma once

#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Throws Error for a conversion of another format and for a plan that does not fit the model.
KvPlan plan_of(const Checkpoint& checkpoint, const ModelConfig& config);
// [num_layers]: layers whose key and value projections the factors replace.
std::vector<bool> replaced_layers(const KvPlan& plan);

}  // namespace kvc

// A run of fused layers in the table of --plan.
#pragma once

#include "convert/plan_table.h"

namespace kvc {

// Layers first_layer .. first_layer + num_layers - 1, all fused.
PlanRow fused_row(const PlanTable& table, const ModelConfig& config, int first_layer,
                  int num_layers);
// Notes on the time that fused layers cost, and on their requirements.
void add_fusion_notes(PlanTable& table, const ConvertSettings& settings);

}  // namespace kvc

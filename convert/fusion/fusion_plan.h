// Plans with fused layers, from a config and settings, or a refusal that says what would work.
#pragma once

#include <functional>
#include <vector>

#include "convert/fusion/fusion_settings.h"
#include "convert/methods/methods.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// --storage-layers, or half of the layers, rounded up. Error where no layer is left to fuse.
int storage_layers(const ModelConfig& config, const FusionSettings& settings);

// All layers plain but `fused` (ascending). Error naming the layers where one cannot read its sources, or,
// with settings.mixed, that layer stays plain.
KvPlan fused_plan(const ModelConfig& config, const FusionSettings& settings,
                  std::vector<FusedLayer> fused);

// The layers above the storage layers, as `layer_of` makes them.
std::vector<FusedLayer> upper_layers(const ModelConfig& config, const FusionSettings& settings,
                                     const std::function<FusedLayer(int layer)>& layer_of);

// Of the bottom `num_storage` layers those that a fused layer can read, ascending.
std::vector<int> readable_sources(const ModelConfig& config, int layer, int num_storage);

// As Method::fill_table.
void fill_fusion_table(PlanTable& table, const PlanRequest& request);

}  // namespace kvc

// Plans with fused layers, from a config and settings, or a refusal with settings that work.
#pragma once

#include <functional>
#include <vector>

#include "convert/fusion/fusion_settings.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// --storage-layers, or half of the layers, rounded up. Error if no layer is left to fuse.
int storage_layers(const ModelConfig& config, const FusionSettings& settings);

// All layers plain except `fused` (ascending). If a layer cannot read its sources: Error naming them; with
// settings.mixed it stays plain.
KvPlan fused_plan(const ModelConfig& config, const FusionSettings& settings,
                  std::vector<FusedLayer> fused);

// The layers above the storage layers, as `layer_of` makes them.
std::vector<FusedLayer> upper_layers(const ModelConfig& config, const FusionSettings& settings,
                                     const std::function<FusedLayer(int layer)>& layer_of);

// The layers among the bottom `num_storage` that a fused layer can read, ascending.
std::vector<int> readable_sources(const ModelConfig& config, int layer, int num_storage);

}  // namespace kvc

// How layers are grouped.
#pragma once

#include <vector>

#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Runs of at most `layers_per_group` adjacent layers of one kind. The last of a run of equal layers
// may be shorter.
std::vector<LatentGroup> group_layers(const ModelConfig& config, int layers_per_group);

}  // namespace kvc

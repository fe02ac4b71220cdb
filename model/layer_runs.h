// How adjacent layers are grouped.
#pragma once

#include <vector>

#include "model/config.h"

namespace kvc {

struct LayerRun {
  int first_layer = 0, num_layers = 0;

  int end() const { return first_layer + num_layers; }
};

// Runs of at most `layers_per_group` adjacent layers of one kind; they cover the model. The last run
// of a stretch of equal layers may be shorter.
std::vector<LayerRun> layer_runs(const ModelConfig& config, int layers_per_group);

}  // namespace kvc

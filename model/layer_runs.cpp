#include "model/layer_runs.h"

namespace kvc {

std::vector<LayerRun> layer_runs(const ModelConfig& config, int layers_per_group) {
  std::vector<LayerRun> runs;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (runs.empty() || runs.back().num_layers == layers_per_group ||
        !config.same_kind(runs.back().first_layer, layer)) {
      runs.emplace_back().first_layer = layer;
    }
    ++runs.back().num_layers;
  }
  return runs;
}

}  // namespace kvc

#include "convert/latent/layer_groups.h"

#include "model/config.h"

namespace kvc {

std::vector<LatentGroup> group_layers(const ModelConfig& config, int layers_per_group) {
  std::vector<LatentGroup> groups;
  for (const LayerRun& run : layer_runs(config, layers_per_group)) {
    LatentGroup& group = groups.emplace_back();
    group.first_layer = run.first_layer;
    group.num_layers = run.num_layers;
  }
  return groups;
}

}  // namespace kvc

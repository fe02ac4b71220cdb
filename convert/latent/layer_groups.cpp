#include "convert/latent/layer_groups.h"

namespace kvc {

std::vector<LatentGroup> group_layers(const ModelConfig& config, int layers_per_group) {
  std::vector<LatentGroup> groups;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (groups.empty() || groups.back().num_layers == layers_per_group ||
        !config.same_kind(groups.back().first_layer, layer)) {
      groups.emplace_back().first_layer = layer;
    }
    ++groups.back().num_layers;
  }
  return groups;
}

}  // namespace kvc

#include "runtime/gpu/layer_launches.h"

namespace kvc {

std::vector<std::shared_ptr<LayerLaunches>> make_layer_launches(StepLaunches& launches) {
  const GpuCache& cache = launches.cache;
  const int num_layers = cache.plan().num_layers();
  if (const GpuKept* kept = cache.kept()) {
    const auto all = kept->is_running() ? running_launches(launches) : voted_launches(launches);
    return std::vector<std::shared_ptr<LayerLaunches>>(static_cast<std::size_t>(num_layers), all);
  }
  const std::shared_ptr<LayerLaunches> plain = plain_launches(launches);
  std::shared_ptr<LayerLaunches> coded, groups;
  if (cache.has_codes() || !cache.plan().groups.empty()) {
    const auto segments = std::make_shared<Segments>(launches);
    coded = coded_launches(launches, segments);
    groups = group_launches(launches, segments);
  }
  std::vector<std::shared_ptr<LayerLaunches>> layers;
  for (int layer = 0; layer < num_layers; ++layer) {
    const bool is_latent = cache.plan().group_of(layer) >= 0;
    const bool has_codes =
        !is_latent && cache.has_codes(launches.model.sources_of(layer).front().key);
    layers.push_back(is_latent ? groups : has_codes ? coded : plain);
  }
  return layers;
}

}  // namespace kvc

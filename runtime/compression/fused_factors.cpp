#include "runtime/compression/fused_factors.h"

namespace kvc {

std::vector<FusedFactors> load_fused_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                             const ModelConfig& config) {
  std::vector<FusedFactors> layers;
  for (const FusedLayer& layer : plan.fused) {
    layers.push_back({layer, channel_pairs(config, layer.layer),
                      load_fused_weights(checkpoint, plan, layer, at::kFloat)});
  }
  return layers;
}

std::int64_t bytes_of(const std::vector<FusedFactors>& layers) {
  std::int64_t bytes = 0;
  for (const FusedFactors& layer : layers) {
    bytes += static_cast<std::int64_t>(layer.weights.key.weight.nbytes() +
                                       layer.weights.value.weight.nbytes());
  }
  return bytes;
}

}  // namespace kvc

#include "runtime/compression/kv_factors.h"

#include "core/factor_checksum.h"

namespace kvc {
namespace {

std::vector<FusedFactors> load_fused_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                             const ModelConfig& config) {
  std::vector<FusedFactors> layers;
  for (const FusedLayer& layer : plan.fused) {
    layers.push_back({layer, channel_pairs(config, layer.layer),
                      load_fused_weights(checkpoint, plan, layer, at::kFloat)});
  }
  return layers;
}

}  // namespace

KvFactors load_kv_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                          const ModelConfig& config, at::ScalarType dtype) {
  KvFactors factors{load_latent_factors(checkpoint, plan, config.hidden_size, dtype),
                    load_coded_factors(checkpoint, plan, config),
                    load_fused_factors(checkpoint, plan, config)};
  check_factors(checkpoint);  // last: its message does not say what is wrong
  return factors;
}

KvFactors factors_of(const KvFactors& factors, const KvPlan& plan, const LayerRange& part) {
  KvFactors chosen;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    if (part.contains(plan.groups[i].first_layer)) {
      chosen.latent.groups.push_back(factors.latent.groups[i]);
    }
  }
  for (std::size_t i = 0; i < plan.coded.size(); ++i) {
    if (part.contains(plan.coded[i].first_layer)) {
      chosen.coded.blocks.push_back(factors.coded.blocks[i]);
    }
  }
  for (const FusedFactors& fused : factors.fused) {
    if (part.contains(fused.layer.layer)) {
      chosen.fused.push_back(fused);
    }
  }
  return chosen;
}

}  // namespace kvc

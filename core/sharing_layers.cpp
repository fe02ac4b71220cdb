#include "core/token_policy.h"

#include <algorithm>

namespace kvc {
namespace {

bool mixes_heads(const FusedLayer& layer) {
  return layer.form == FusionForm::kFull || !layer.key_heads.empty() || !layer.value_heads.empty();
}

bool contains(const std::vector<int>& layers, int layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

void take_over(std::vector<int>& from, std::vector<int>& to) {
  to.insert(to.end(), from.begin(), from.end());
  std::sort(to.begin(), to.end());
}

// The sets that `layer` reads become one, with it.
void join(const FusedLayer& layer, std::vector<SharingLayers>& sets) {
  std::vector<SharingLayers> others;
  SharingLayers joined{.layers = {layer.layer}, .storage = {}, .shares_heads = mixes_heads(layer)};
  for (SharingLayers& set : sets) {
    const bool is_read = std::any_of(set.storage.begin(), set.storage.end(), [&](int source) {
      return contains(layer.key_sources, source) || contains(layer.value_sources, source);
    });
    if (is_read) {
      take_over(set.layers, joined.layers);
      take_over(set.storage, joined.storage);
      joined.shares_heads = joined.shares_heads || set.shares_heads;
    } else {
      others.push_back(std::move(set));
    }
  }
  others.push_back(std::move(joined));
  sets = std::move(others);
}

}  // namespace

std::vector<SharingLayers> sharing_layers(const KvPlan& plan) {
  std::vector<SharingLayers> sets;
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    if (plan.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain) {
      sets.push_back({.layers = {layer}, .storage = {layer}});
    }
  }
  for (const FusedLayer& layer : plan.fused) {
    join(layer, sets);
  }
  std::sort(sets.begin(), sets.end(), [](const SharingLayers& a, const SharingLayers& b) {
    return a.layers.front() < b.layers.front();
  });
  return sets;
}

}  // namespace kvc

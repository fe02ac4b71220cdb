#include "core/kv_plan_parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvc {

std::string to_string(const LayerRange& layers) {
  return layers.count == 1 ? fmt::format("layer {}", layers.first)
                           : fmt::format("layers {}-{}", layers.first, layers.end() - 1);
}

namespace {

bool begins_at(const std::vector<LayerRange>& parts, int layer) {
  return !parts.empty() && parts.back().first == layer;
}

}  // namespace

std::vector<LayerRange> parts_of(const KvPlan& plan) {
  std::vector<LayerRange> parts;
  for (const LatentGroup& group : plan.groups) {
    parts.push_back({group.first_layer, group.num_layers});
  }
  for (const CodedBlock& block : plan.coded) {
    if (!begins_at(parts, block.first_layer)) {  // blocks of further heads or of values
      parts.push_back({block.first_layer, block.num_layers});
    }
  }
  for (const FusedLayer& layer : plan.fused) {
    parts.push_back({layer.layer, 1});
  }
  if (plan.paired) {
    for (const int first : plan.paired->first_layers) {
      parts.push_back({first, 2});
    }
  }
  std::ranges::sort(parts, {}, &LayerRange::first);
  return parts;
}

KvPlan with_part_only(const KvPlan& plan, const LayerRange& part) {
  KvPlan result = plan;
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    if (!part.contains(layer)) {
      result.layers[static_cast<std::size_t>(layer)] = KvSource::kPlain;
    }
  }
  const auto is_outside = [&part](const auto& held) { return !part.contains(held.first_layer); };
  std::erase_if(result.groups, is_outside);
  std::erase_if(result.coded, is_outside);
  std::erase_if(result.fused,
                [&part](const FusedLayer& layer) { return !part.contains(layer.layer); });
  if (result.paired) {
    std::erase_if(result.paired->first_layers,
                  [&part](int layer) { return !part.contains(layer); });
    if (result.paired->first_layers.empty()) {
      result.paired.reset();
    }
  }
  if (result.groups.empty()) {
    result.request.reset();
  }
  const double share = static_cast<double>(part.count) / plan.num_layers();
  double& target = result.compression.target_kept_ratio;
  target = 1 - share * (1 - target);
  result.check();
  return result;
}

}  // namespace kvc

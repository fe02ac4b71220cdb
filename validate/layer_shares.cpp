#include "validate/layer_shares.h"

#include "core/kv_plan_bytes.h"

namespace kvc {
namespace {

constexpr std::int64_t kTokens = kQuantisedTokens;  // whole tiles and blocks of codes

double plain_bytes(const KvPlan& plan, KvDtype cache) {
  const std::int64_t codes = is_integer(cache) ? kTokens : 0;
  return static_cast<double>(plain_layer_bytes(plan, codes, kTokens - codes, cache, 1));
}

}  // namespace

std::vector<LayerShare> layer_shares(const KvPlan& plan, KvDtype own, KvDtype cache) {
  const std::int64_t own_bytes = plain_layer_bytes(plan, kTokens, own);
  const auto size = static_cast<std::size_t>(plan.num_layers());
  std::vector<double> bytes(size, 0);  // of kTokens tokens; fused layers keep none
  const auto share = [&bytes](int first_layer, int num_layers, double total) {
    for (int layer = first_layer; layer < first_layer + num_layers; ++layer) {
      bytes[static_cast<std::size_t>(layer)] += total / num_layers;
    }
  };
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    if (plan.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain) {
      share(layer, 1, plain_bytes(plan, cache));
    }
  }
  const bool merges = plan.compression.rule != MergeRule::kNone;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const GroupTokens tokens =
        merges ? GroupTokens{.merged = kTokens} : GroupTokens{.unmerged = kTokens};
    share(plan.groups[i].first_layer, plan.groups[i].num_layers,
          static_cast<double>(group_bytes(plan, static_cast<int>(i), tokens, cache)));
  }
  for (const CodedBlock& block : plan.coded) {
    share(block.first_layer, block.num_layers,
          static_cast<double>(block_code_bytes(block, kTokens)));
  }
  if (plan.paired) {
    for (const int layer : plan.paired->first_layers) {
      share(layer, 2, static_cast<double>(pair_bytes(plan, {.merged = kTokens}, cache)));
    }
  }
  const auto numbers = static_cast<double>(kTokens * plan.plain_widths().total());
  std::vector<LayerShare> layers;
  for (std::size_t layer = 0; layer < size; ++layer) {
    layers.push_back({.source = plan.layers[layer],
                      .kept_ratio = bytes[layer] / static_cast<double>(own_bytes),
                      .bits = 8 * bytes[layer] / numbers});
  }
  return layers;
}

Json to_json(const std::vector<LayerShare>& layers) {
  Json json = Json::array();
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    json.push_back({{"layer", layer},
                    {"source", to_string(layers[layer].source)},
                    {"kept_ratio", layers[layer].kept_ratio},
                    {"bits", layers[layer].bits}});
  }
  return json;
}

}  // namespace kvc

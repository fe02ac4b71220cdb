// --scope auto.
#include <fmt/format.h>

#include <algorithm>

#include "convert/coded/block_layout.h"
#include "convert/plan.h"
#include "convert/plan_table.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

// Below it the bits that layers save together are worth that each of them reads the group's code.
constexpr double kGroupBelow = 0.15;

// Bits that a scope needs for the divergence of single heads, measured on three models at kept ratios from 0.0625
// to 0.35 (docs/quality.md): layers 0.55 to 0.81 of them, groups of four 0.74 to 0.84 of those.
constexpr double kLayerBits = 0.7, kGroupBits = 0.55;

double share_of_bits(CodedScope scope) {
  switch (scope) {
    case CodedScope::kHead:
      break;
    case CodedScope::kLayer:
      return kLayerBits;
    case CodedScope::kGroup:
      return kGroupBits;
  }
  return 1;
}

struct Cost {
  CodedScope scope = CodedScope::kHead;
  double cache = 0;  // bytes at tokens_in_flight, of equal divergence
  std::int64_t factors = 0;

  double total() const { return cache + static_cast<double>(factors); }
};

Cost cost_of(const ModelConfig& config, const ConvertSettings& settings, CodedScope scope) {
  KvPlan plan = plain_plan(config);
  plan.coded = block_layout(config, settings, all_layers(config, settings, scope));
  const double share = settings.kept_ratio * share_of_bits(scope);
  const double bits_per_channel = share * 8 * bytes_per_element(cache_dtype(config));
  Cost cost{scope,
            share * static_cast<double>(original_bytes(plan, tokens_in_flight(config, settings),
                                                       cache_dtype(config))),
            0};
  for (std::size_t block = 0; block < plan.coded.size(); ++block) {
    const std::int64_t channels = num_channels(plan.coded[block], config);
    const double bits = bits_per_channel * static_cast<double>(channels);
    plan.coded[block].coefficients[1] = static_cast<std::int64_t>(bits);
    cost.factors += estimated_block_bytes(plan, static_cast<int>(block));
  }
  return cost;
}

std::vector<CodedScope> candidates(const ConvertSettings& settings) {
  const CodedSettings& own = settings.own<CodedSettings>();
  if (parse_coded_form(own.form).keys != KeyTransform::kFull) {
    return {CodedScope::kHead};
  }
  switch (own.prefer) {
    case Preference::kSpeed:
      return {CodedScope::kHead};
    case Preference::kCapacity:
      return {CodedScope::kHead, CodedScope::kLayer, CodedScope::kGroup};
    case Preference::kBalance:
      break;
  }
  return settings.kept_ratio < kGroupBelow
             ? std::vector<CodedScope>{CodedScope::kHead, CodedScope::kLayer, CodedScope::kGroup}
             : std::vector<CodedScope>{CodedScope::kHead, CodedScope::kLayer};
}

}  // namespace

LayerScopes choose_scope(const ModelConfig& config, const ConvertSettings& settings) {
  std::vector<Cost> costs;
  for (const CodedScope scope : candidates(settings)) {
    costs.push_back(cost_of(config, settings, scope));
  }
  const Cost best = *std::min_element(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) {
    return a.total() < b.total();
  });
  LayerScopes chosen = all_layers(config, settings, best.scope);
  if (costs.size() == 1) {
    chosen.reason = "--scope auto: head, the fewest operations to rebuild keys and values";
    return chosen;
  }
  chosen.reason = fmt::format(
      "--scope auto: {}, the smallest cache and factors for {} tokens in flight at equal "
      "divergence:",
      to_string(best.scope), tokens_in_flight(config, settings));
  for (const Cost& cost : costs) {
    chosen.reason +=
        fmt::format("{} {} {:.1f} + {:.1f} MiB", &cost == costs.data() ? "" : ",",
                    to_string(cost.scope), cost.cache / (1 << 20), mebibytes(cost.factors));
  }
  return chosen;
}

}  // namespace kvc

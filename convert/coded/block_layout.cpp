#include "convert/coded/block_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "convert/plan.h"
#include "convert/plan_table.h"
#include "core/error.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

CodedScope scope_named(const std::string& text, const std::string& name) {
  try {
    return parse_coded_scope(name);
  } catch (const Error& error) {
    fail_usage("--scope {}: {}; or auto", text, error.what());
  }
}

int layer_number(const std::string& text, std::string_view digits, int num_layers) {
  int layer = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  KVC_CHECK_USAGE(error == std::errc() && end == digits.data() + digits.size() && layer >= 0 &&
                      layer < num_layers,
                  "--scope {}: the model has no layer \"{}\"; expected 0 to {}", text, digits,
                  num_layers - 1);
  return layer;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// "head:0-5,group:6-11", "layer:3,head:0-2,...", "group".
std::vector<CodedScope> listed_scopes(const std::string& text, int num_layers) {
  std::vector<std::optional<CodedScope>> scopes(static_cast<std::size_t>(num_layers));
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> words = split(part, ':');
    const CodedScope scope = scope_named(text, words.front());
    int first = 0, last = num_layers - 1;
    if (words.size() > 1) {
      const std::vector<std::string> range = split(words[1], '-');
      first = layer_number(text, range.front(), num_layers);
      last = layer_number(text, range.back(), num_layers);
      KVC_CHECK_USAGE(words.size() == 2 && range.size() <= 2 && first <= last,
                      "--scope {}: \"{}\" is not a range of layers; write SCOPE:FIRST-LAST", text,
                      part);
    }
    for (int layer = first; layer <= last; ++layer) {
      auto& chosen = scopes[static_cast<std::size_t>(layer)];
      KVC_CHECK_USAGE(!chosen, "--scope {}: layer {} has two scopes", text, layer);
      chosen = scope;
    }
  }
  std::vector<CodedScope> all;
  for (std::size_t layer = 0; layer < scopes.size(); ++layer) {
    KVC_CHECK_USAGE(scopes[layer], "--scope {}: layer {} has none", text, layer);
    all.push_back(*scopes[layer]);
  }
  return all;
}

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

LayerScopes all_layers(const ModelConfig& config, CodedScope scope) {
  return {std::vector<CodedScope>(static_cast<std::size_t>(config.num_layers), scope), ""};
}

struct Cost {
  CodedScope scope = CodedScope::kHead;
  double cache = 0;  // bytes at tokens_in_flight, of equal divergence
  std::int64_t factors = 0;

  double total() const { return cache + static_cast<double>(factors); }
};

Cost cost_of(const ModelConfig& config, const ConvertSettings& settings, CodedScope scope) {
  KvPlan plan = plain_plan(config);
  plan.coded = block_layout(config, settings, all_layers(config, scope));
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
  switch (settings.own<CodedSettings>().prefer) {
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

LayerScopes choose_scopes(const ModelConfig& config, const ConvertSettings& settings) {
  const std::string& scope = settings.own<CodedSettings>().scope;
  return scope == "auto" ? choose_scope(config, settings)
                         : LayerScopes{listed_scopes(scope, config.num_layers), ""};
}

int statistics_layers(const ConvertSettings& settings, const std::vector<CodedBlock>& blocks) {
  const bool joint = std::any_of(blocks.begin(), blocks.end(),
                                 [](const CodedBlock& block) { return block.num_layers > 1; });
  return joint ? settings.layers_per_group : 1;
}

std::vector<CodedBlock> block_layout(const ModelConfig& config, const ConvertSettings& settings,
                                     const LayerScopes& scopes) {
  std::vector<CodedBlock> blocks;
  for (const LayerRun& run : layer_runs(config, settings.layers_per_group)) {
    for (int layer = run.first_layer; layer < run.end(); ++layer) {
      const CodedScope scope = scopes.scopes[static_cast<std::size_t>(layer)];
      if (scope == CodedScope::kHead) {
        for (int head = 0; head < config.num_kv_heads; ++head) {
          CodedBlock& block = blocks.emplace_back();
          block.first_layer = layer;
          block.head = head;
        }
        continue;
      }
      const bool joins = scope == CodedScope::kGroup && layer > run.first_layer &&
                         scopes.scopes[static_cast<std::size_t>(layer - 1)] == scope;
      if (joins) {
        ++blocks.back().num_layers;
      } else {
        blocks.emplace_back().first_layer = layer;
      }
    }
  }
  return blocks;
}

std::int64_t num_channels(const CodedBlock& block, const ModelConfig& config) {
  return 2 * block.num_layers * (block.head < 0 ? config.kv_dim() : config.head_dim);
}

std::int64_t least_calibration_tokens(const CodedBlock& block, const ModelConfig& config) {
  constexpr std::int64_t kTokensPerChannel = 4;
  return kTokensPerChannel * num_channels(block, config);
}

std::vector<std::int64_t> channels_in_run(const CodedBlock& block, const LayerRun& run,
                                          const ModelConfig& config) {
  std::vector<std::int64_t> channels;
  const std::int64_t width = block.head < 0 ? config.kv_dim() : config.head_dim;
  const std::int64_t offset = block.head < 0 ? 0 : block.head * config.head_dim;
  for (int part = 0; part < 2 * block.num_layers; ++part) {
    const std::int64_t first =
        (2 * (block.first_layer - run.first_layer) + part) * config.kv_dim() + offset;
    for (std::int64_t channel = 0; channel < width; ++channel) {
      channels.push_back(first + channel);
    }
  }
  return channels;
}

std::string name_of(const CodedBlock& block) {
  if (block.head >= 0) {
    return fmt::format("layer {}, KV head {}", block.first_layer, block.head);
  }
  return block.num_layers == 1 ? fmt::format("layer {}", block.first_layer)
                               : fmt::format("layers {}-{}", block.first_layer,
                                             block.first_layer + block.num_layers - 1);
}

LayerScopes choose_scope(const ModelConfig& config, const ConvertSettings& settings) {
  std::vector<Cost> costs;
  for (const CodedScope scope : candidates(settings)) {
    costs.push_back(cost_of(config, settings, scope));
  }
  const Cost best = *std::min_element(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) {
    return a.total() < b.total();
  });
  LayerScopes chosen = all_layers(config, best.scope);
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

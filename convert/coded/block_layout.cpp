#include "convert/coded/block_layout.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "convert/coded/scope_choice.h"
#include "core/error.h"

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

}  // namespace

bool LayerScopes::any(CodedScope scope) const {
  return std::find(scopes.begin(), scopes.end(), scope) != scopes.end();
}

LayerScopes choose_scopes(const ModelConfig& config, const ConvertSettings& settings) {
  return settings.coded.scope == "auto"
             ? choose_scope(config, settings)
             : LayerScopes{listed_scopes(settings.coded.scope, config.num_layers), ""};
}

int statistics_layers(const ConvertSettings& settings, const LayerScopes& scopes) {
  return scopes.any(CodedScope::kGroup) ? settings.layers_per_group : 1;
}

std::vector<LayerRun> statistics_runs(const ModelConfig& config, const ConvertSettings& settings,
                                      const LayerScopes& scopes) {
  return layer_runs(config, statistics_layers(settings, scopes));
}

std::vector<CodedBlock> block_layout(const ModelConfig& config, const ConvertSettings& settings,
                                     const LayerScopes& scopes) {
  std::vector<CodedBlock> blocks;
  for (const LayerRun& run : statistics_runs(config, settings, scopes)) {
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

}  // namespace kvc

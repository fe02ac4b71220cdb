#include "convert/coded/block_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "convert/plan.h"
#include "core/error.h"
#include "core/kv_plan_parts.h"
#include "core/parse_number.h"
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
  KVC_CHECK_USAGE(parse_number(digits, layer) && layer >= 0 && layer < num_layers,
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

// Form auto is planned as the form with the largest factors.
bool is_full(const CodedForm& form) {
  return form.keys == KeyTransform::kFull || form.keys == KeyTransform::kAuto;
}

// The blocks of keys of a form.
CodedBlock keys_of(const ModelConfig& config, const CodedForm& form) {
  const auto pairs = static_cast<int>(config.head_dim / 2);
  CodedBlock block{.part = CodedParts::kKeys};
  if (form.keys != KeyTransform::kKeys) {
    block.bases = form.keys == KeyTransform::kBlocks ? form.blocks : pairs;
  }
  block.rotated = form.keys == KeyTransform::kRotated;
  return block;
}

// Blocks like `block` of a layer: one for all KV heads, or one each.
void add_part(const ModelConfig& config, int layer, bool whole, CodedBlock block,
              std::vector<CodedBlock>& blocks) {
  block.first_layer = layer;
  for (int head = 0; head < (whole ? 1 : config.num_kv_heads); ++head) {
    block.head = whole ? -1 : head;
    blocks.push_back(block);
  }
}

// UsageError where a layer cannot have its form.
void check_form(const ModelConfig& config, const std::string& text, const LayerScopes& scopes,
                int layer) {
  const auto index = static_cast<std::size_t>(layer);
  const CodedForm& form = scopes.forms[index];
  KVC_CHECK_USAGE(form.keys == KeyTransform::kFull || scopes.scopes[index] != CodedScope::kGroup,
                  "--form {}: layer {} has the scope group, which codes keys and values of its "
                  "layers together; use --form full, or --scope head or layer",
                  text, layer);
  KVC_CHECK_USAGE(form.keys != KeyTransform::kBlocks || config.head_dim / 2 % form.blocks == 0,
                  "--form {}: the {} rotary pairs of a head cannot be shared out evenly; use a "
                  "number that divides {}",
                  text, config.head_dim / 2, config.head_dim / 2);
  KVC_CHECK_USAGE(form.keys != KeyTransform::kRotated || !config.depends_on_length(layer),
                  "--form {}: the RoPE of layer {} depends on the length of the text, so its keys "
                  "are coded before RoPE; use --form pairs",
                  text, layer);
}

}  // namespace

LayerScopes all_layers(const ModelConfig& config, const ConvertSettings& settings,
                       CodedScope scope) {
  const auto count = static_cast<std::size_t>(config.num_layers);
  return {std::vector<CodedScope>(count, scope),
          std::vector<CodedForm>(count, parse_coded_form(settings.own<CodedSettings>().form)), ""};
}

LayerScopes choose_scopes(const ModelConfig& config, const ConvertSettings& settings) {
  const CodedSettings& own = settings.own<CodedSettings>();
  LayerScopes chosen = own.scope == "auto" ? choose_scope(config, settings)
                                           : all_layers(config, settings, CodedScope::kHead);
  if (own.scope != "auto") {
    chosen.scopes = listed_scopes(own.scope, config.num_layers);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    check_form(config, own.form, chosen, layer);
  }
  return chosen;
}

std::vector<CodedBlock> blocks_in(const std::vector<CodedBlock>& blocks, const LayerRun& run) {
  std::vector<CodedBlock> inside;
  for (const CodedBlock& block : blocks) {
    if (block.first_layer >= run.first_layer && block.first_layer < run.end()) {
      inside.push_back(block);
    }
  }
  return inside;
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
      const CodedForm form = scopes.forms[static_cast<std::size_t>(layer)];
      if (!is_full(form)) {
        add_part(config, layer, scope == CodedScope::kLayer && form.keys == KeyTransform::kKeys,
                 keys_of(config, form), blocks);
        add_part(config, layer, scope == CodedScope::kLayer, {.part = CodedParts::kValues}, blocks);
        continue;
      }
      if (scope == CodedScope::kHead) {
        add_part(config, layer, false, {}, blocks);
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
  for (CodedBlock& block : blocks) {
    block.gain = settings.own<CodedSettings>().gain == GainChoice::kOn;
  }
  return blocks;
}

std::int64_t num_channels(const CodedBlock& block, const ModelConfig& config) {
  return block.num_parts() * (block.head < 0 ? config.kv_dim() : config.head_dim);
}

std::int64_t key_products(const CodedBlock& block, const ModelConfig& config) {
  return block.has_keys() && !block.rotated
             ? config.head_dim * block.num_coefficients() / block.bases
             : 0;
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
    if (!(part % 2 == 0 ? block.has_keys() : block.has_values())) {
      continue;
    }
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
  return to_string(LayerRange{block.first_layer, block.num_layers});
}

}  // namespace kvc

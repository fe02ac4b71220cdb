#include "model/config_parts.h"

#include <algorithm>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::int64_t kMaxWindow = INT32_MAX;

bool needs_switch(WindowRule rule) {
  return rule == WindowRule::kAllLayersIfUsed || rule == WindowRule::kFromMaxWindowLayers ||
         rule == WindowRule::kEvenBelowMaxWindowLayers || rule == WindowRule::kLayersWithoutRope;
}

// The window of a sliding layer, or nullopt where no layer slides.
std::optional<std::int64_t> sliding_window(const ConfigReader& reader, const ArchSpec& arch) {
  if (arch.window == WindowRule::kNone ||
      (needs_switch(arch.window) && !reader.boolean_or("use_sliding_window", false))) {
    return std::nullopt;
  }
  if (reader.find("sliding_window") != nullptr) {
    return reader.integer("sliding_window", 1, kMaxWindow);
  }
  return reader.contains("sliding_window") ? std::nullopt
                                           : std::optional<std::int64_t>(arch.default_window);
}

// Whether each layer slides, by a family's own rule over layer indices.
std::vector<bool> layers_by_rule(const ConfigReader& reader, const ModelConfig& config,
                                 const std::vector<bool>& has_rope) {
  constexpr std::int64_t kDefaultMaxWindowLayers = 28;
  const WindowRule rule = config.arch->window;
  const bool bounded =
      rule == WindowRule::kFromMaxWindowLayers || rule == WindowRule::kEvenBelowMaxWindowLayers;
  const std::int64_t bound =
      bounded ? reader.integer_or("max_window_layers", kDefaultMaxWindowLayers, 0, INT32_MAX) : 0;
  std::int64_t pattern = config.arch->window_pattern;
  if (rule == WindowRule::kPattern) {
    pattern = reader.integer_or("sliding_window_pattern", pattern, 1, INT32_MAX);
  }
  std::vector<bool> slides;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    switch (rule) {
      case WindowRule::kNone:
        slides.push_back(false);
        break;
      case WindowRule::kAllLayers:
      case WindowRule::kAllLayersIfUsed:
      case WindowRule::kFromMaxWindowLayers:
        slides.push_back(layer >= bound);
        break;
      case WindowRule::kEvenBelowMaxWindowLayers:
        slides.push_back(layer % 2 == 0 && layer < bound);
        break;
      case WindowRule::kEvenLayers:
        slides.push_back(layer % 2 == 0);
        break;
      case WindowRule::kPattern:
      case WindowRule::kFixedPattern:
        slides.push_back((layer + 1) % pattern != 0);
        break;
      case WindowRule::kLayersWithoutRope:
        slides.push_back(!has_rope[static_cast<std::size_t>(layer)]);
        break;
    }
  }
  return slides;
}

std::vector<bool> sliding_layers(const ConfigReader& reader, const ModelConfig& config,
                                 const std::vector<bool>& has_rope, bool has_window) {
  const auto types = reader.texts("layer_types");
  if (types.empty()) {
    return layers_by_rule(reader, config, has_rope);
  }
  KVC_CHECK(types.size() == static_cast<std::size_t>(config.num_layers),
            "{}: \"layer_types\" has {} entries; expected {} (\"num_hidden_layers\")",
            reader.subject(), types.size(), config.num_layers);
  std::vector<bool> slides;
  for (const std::string& type : types) {
    slides.push_back(type == "sliding_attention");
    KVC_CHECK(slides.back() || type == "full_attention",
              "{}: layer {} is of type \"{}\"; supported: full_attention, sliding_attention",
              reader.subject(), slides.size() - 1, type);
    KVC_CHECK(!slides.back() || has_window,
              "{}: layer {} is sliding_attention, but this {} config sets no sliding window",
              reader.subject(), slides.size() - 1, config.arch->model_type);
    KVC_CHECK(config.arch->reads_layer_types || slides.back() == has_window,
              "{}: layer {} is {}, but transformers reads no \"layer_types\" of {} models: all "
              "layers have the sliding window; remove the key to convert what it runs",
              reader.subject(), slides.size() - 1, type, config.arch->model_type);
  }
  return slides;
}

// no_rope_layers lists a 1 for every layer that has RoPE, as transformers names it.
std::vector<bool> layers_with_rope(const ConfigReader& reader, const ModelConfig& config) {
  constexpr std::int64_t kDefaultInterval = 4;
  const auto num_layers = static_cast<std::size_t>(config.num_layers);
  std::vector<bool> has_rope(num_layers, true);
  if (config.arch->rope_layers != RopeLayers::kListed) {
    return has_rope;
  }
  const std::vector<std::int64_t> listed = reader.integers("no_rope_layers");
  const std::int64_t interval =
      reader.integer_or("no_rope_layer_interval", kDefaultInterval, 1, INT32_MAX);
  KVC_CHECK(reader.find("no_rope_layers") == nullptr || listed.size() == num_layers,
            "{}: \"no_rope_layers\" has {} entries; expected {} (\"num_hidden_layers\")",
            reader.subject(), listed.size(), num_layers);
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    has_rope[layer] =
        listed.empty() ? static_cast<std::int64_t>(layer + 1) % interval != 0 : listed[layer] != 0;
  }
  return has_rope;
}

}  // namespace

std::vector<LayerSpec> resolve_layers(const ConfigReader& reader, const ModelConfig& config) {
  const auto window = sliding_window(reader, *config.arch);
  std::vector<bool> has_rope = layers_with_rope(reader, config);
  const std::vector<bool> slides = sliding_layers(reader, config, has_rope, window.has_value());
  if (config.arch->rope_layers == RopeLayers::kSliding && window) {
    has_rope = slides;
  }
  std::vector<LayerSpec> layers;
  for (std::size_t layer = 0; layer < slides.size(); ++layer) {
    const int rope = slides[layer] && config.ropes.size() > 1 ? 1 : 0;
    layers.push_back(
        {.window = slides[layer] ? window : std::nullopt, .rope = has_rope[layer] ? rope : -1});
  }
  return layers;
}

std::vector<LayerRun> layer_runs(const ModelConfig& config, int layers_per_group) {
  std::vector<LayerRun> runs;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (runs.empty() || runs.back().num_layers == layers_per_group ||
        !config.same_kind(runs.back().first_layer, layer)) {
      runs.emplace_back().first_layer = layer;
    }
    ++runs.back().num_layers;
  }
  return runs;
}

}  // namespace kvc

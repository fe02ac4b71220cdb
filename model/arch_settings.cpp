#include "model/arch_settings.h"

namespace kvc {
namespace {

void add_window_settings(const ArchSpec& arch, std::vector<std::string>& keys) {
  if (arch.window == WindowRule::kNone) {
    return;
  }
  keys.insert(keys.end(), {"sliding_window", "layer_types"});
  if (arch.window == WindowRule::kFromMaxWindowLayers ||
      arch.window == WindowRule::kLayersWithoutRope) {
    keys.emplace_back("use_sliding_window");
  }
  if (arch.window == WindowRule::kFromMaxWindowLayers) {
    keys.emplace_back("max_window_layers");
  }
  if (arch.window == WindowRule::kPattern) {
    keys.emplace_back("sliding_window_pattern");
  }
}

}  // namespace

std::vector<std::string> honoured_settings(const ArchSpec& arch) {
  std::vector<std::string> keys;
  if (arch.nested_text) {
    keys.emplace_back("text_config");
  }
  if (arch.biases == BiasRule::kAttentionBiasKey) {
    keys.emplace_back("attention_bias");
  }
  if (arch.biases == BiasRule::kUseBiasKey) {
    keys.emplace_back("use_bias");
  }
  if (arch.mlp_bias_key) {
    keys.emplace_back("mlp_bias");
  }
  for (const Setting& setting : arch.settings) {
    if (!setting.key.empty()) {
      keys.emplace_back(setting.key);
    }
  }
  add_window_settings(arch, keys);
  if (arch.rope == RopeRule::kPerLayerType) {
    keys.emplace_back("rope_local_base_freq");
  }
  if (arch.partial_rotary) {
    keys.emplace_back("partial_rotary_factor");
  }
  if (arch.layers_without_rope) {
    keys.insert(keys.end(), {"no_rope_layers", "no_rope_layer_interval"});
  }
  keys.emplace_back(arch.norm_eps_key);
  keys.emplace_back(arch.activation_key);
  return keys;
}

}  // namespace kvc

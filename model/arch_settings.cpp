#include "model/arch.h"

namespace kvc {
namespace {

void add_window_settings(const ArchSpec& arch, std::vector<std::string>& keys) {
  if (arch.window == WindowRule::kNone) {
    return;
  }
  keys.emplace_back("sliding_window");
  if (arch.reads_layer_types) {
    keys.emplace_back("layer_types");
  }
  const bool bounded = arch.window == WindowRule::kFromMaxWindowLayers ||
                       arch.window == WindowRule::kEvenBelowMaxWindowLayers;
  if (bounded || arch.window == WindowRule::kAllLayersIfUsed ||
      arch.window == WindowRule::kLayersWithoutRope) {
    keys.emplace_back("use_sliding_window");
  }
  if (bounded) {
    keys.emplace_back("max_window_layers");
  }
  if (arch.window == WindowRule::kPattern) {
    keys.emplace_back("sliding_window_pattern");
  }
}

void add_expert_settings(const ArchSpec& arch, std::vector<std::string>& keys) {
  switch (arch.experts) {
    case ExpertStyle::kNone:
      return;
    case ExpertStyle::kMixtral:
      keys.insert(keys.end(), {"num_local_experts", "num_experts_per_tok"});
      return;
    case ExpertStyle::kQwen:
    case ExpertStyle::kQwen2:
      keys.insert(keys.end(), {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                               "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"});
      if (arch.experts == ExpertStyle::kQwen2) {
        keys.emplace_back("shared_expert_intermediate_size");
      }
      return;
    case ExpertStyle::kDeepseek:
      keys.insert(keys.end(), {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
                               "n_shared_experts", "first_k_dense_replace", "moe_layer_freq",
                               "routed_scaling_factor", "topk_method", "n_group", "topk_group"});
  }
}

}  // namespace

std::vector<std::string> honoured_settings(const ArchSpec& arch) {
  std::vector<std::string> keys;
  if (!arch.nested_text.empty()) {
    keys.emplace_back("text_config");
  }
  if (arch.biases == BiasRule::kAttentionBiasKey || arch.biases == BiasRule::kQkvAndOutputKeys) {
    keys.emplace_back("attention_bias");
  }
  if (arch.biases == BiasRule::kQkvAndOutputKeys) {
    keys.emplace_back("attention_out_bias");
  }
  if (arch.biases == BiasRule::kUseBiasKey) {
    keys.emplace_back("use_bias");
  }
  if (arch.biases == BiasRule::kQkvBiasKey) {
    keys.emplace_back("qkv_bias");
  }
  if (arch.mlp_bias_key) {
    keys.emplace_back("mlp_bias");
  }
  for (const Setting& setting : arch.settings) {
    if (!setting.key.empty()) {
      keys.emplace_back(setting.key);
    }
  }
  if (arch.latent_attention) {
    keys.insert(keys.end(), {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                             "v_head_dim"});
  }
  add_window_settings(arch, keys);
  if (arch.rope == RopeRule::kPerLayerType && arch.sliding_theta_key != "rope_theta") {
    keys.emplace_back(arch.sliding_theta_key);
  }
  if (arch.partial_rotary) {
    keys.emplace_back("partial_rotary_factor");
  }
  if (arch.rope_layers == RopeLayers::kListed) {
    keys.insert(keys.end(), {"no_rope_layers", "no_rope_layer_interval"});
  }
  add_expert_settings(arch, keys);
  keys.emplace_back(arch.norm_eps_key);
  keys.emplace_back(arch.activation_key);
  return keys;
}

}  // namespace kvc

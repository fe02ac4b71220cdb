// The table of supported architectures: one row each, and nothing outside it asks for a model's name.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace kvc {

// Where a family takes a value from when config.json does not say.
enum class WindowRule {
  kNone,                // no sliding window, whatever the config holds
  kAllLayers,           // mistral: every layer, if the window is not null
  kFromMaxWindowLayers  // qwen: layers from max_window_layers on, if use_sliding_window
};

struct ArchSpec {
  std::string_view model_type;      // config.json's model_type
  std::string_view architecture;    // "LlamaForCausalLM"
  bool qkv_bias_always = false;     // qwen2: q, k, v biases without a config key
  bool attention_bias_key = false;  // honours "attention_bias" (q, k, v, o)
  bool mlp_bias_key = false;
  bool qk_norm = false;                       // per-head RMS norm of queries and keys before RoPE
  std::optional<int> default_num_kv_heads{};  // when absent; nullopt: num_heads
  std::optional<int> default_head_dim{};      // when absent; nullopt: hidden_size / num_heads
  WindowRule window = WindowRule::kNone;
};

std::span<const ArchSpec> supported_archs();
// Throws Error "<subject>: model_type \"x\" is not supported; supported: ...".
const ArchSpec& find_arch(std::string_view model_type, std::string_view subject);

}  // namespace kvc

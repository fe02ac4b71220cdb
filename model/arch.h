// The table of supported architectures, one row each. Nothing outside it asks for a model's name.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>

#include <string>
#include <vector>
#include "model/moe_config.h"

namespace kvc {

enum class AttentionKind {
  kHeads,  // keys and values of their own per KV head, from k_proj and v_proj
  kMla     // all keys and values made from one latent per token
};

enum class NormKind {
  kRms,         // x / rms(x), cast, times w
  kRmsWide,     // x / rms(x) times w in float32, then cast
  kRmsPlusOne,  // x / rms(x) times 1 + w in float32, then cast
  kLayer        // (x - mean) / deviation, times w plus b
};

enum class NormPlacement {
  kPre,       // before attention and before the MLP
  kSandwich,  // before and after each
  kPost       // after each, nothing before
};

enum class QkNorm {
  kNone,
  kPerHead,         // queries and keys, head by head
  kWholeProjection  // over all channels of a token's queries, and of its keys
};

enum class BiasRule {
  kNone,
  kQueryKeyValue,     // always on q, k, v, without a config key
  kAttentionBiasKey,  // "attention_bias": q, k, v, o
  kQkvBiasKey,        // "qkv_bias", true when absent: q, k, v
  kQkvAndOutputKeys,  // "attention_bias", true when absent: q, k, v; "attention_out_bias": o
  kUseBiasKey         // "use_bias": every projection of attention and MLP
};

// Which layers see a sliding window when config.json has no layer_types.
enum class WindowRule {
  kNone,                      // none, whatever the config holds
  kAllLayers,                 // every layer, if the window is not null
  kAllLayersIfUsed,           // every layer, if use_sliding_window
  kFromMaxWindowLayers,       // layers from max_window_layers on, if use_sliding_window
  kEvenBelowMaxWindowLayers,  // even layers below max_window_layers, if use_sliding_window
  kEvenLayers,                // 0, 2, 4, ...
  kPattern,                   // all but every sliding_window_pattern-th
  kFixedPattern,              // all but every window_pattern-th, which config.json can't change
  kLayersWithoutRope          // layers without RoPE, if use_sliding_window
};

// Which layers rotate queries and keys.
enum class RopeLayers {
  kAll,
  kListed,  // those that "no_rope_layers" lists a 1 for, or all but every no_rope_layer_interval-th
  kSliding  // those with a sliding window; all layers of a model that has none
};

enum class RopeRule {
  kOne,           // one set of parameters
  kPerLayerType,  // one for full layers, one for sliding ones
  kLongRope       // one; "su" and "yarn" are old names of longrope, and only that and default exist
};

// A key of config.json that changes what attention or the residual stream computes, and its value when
// absent. A config must not have a key that its row lacks.
struct Setting {
  std::string_view key;
  double fallback = 0;  // 0: off
};

struct ArchSpec {
  std::string_view model_type;    // config.json's model_type
  std::string_view architecture;  // "LlamaForCausalLM"
  // model_type of the text model under "text_config", whose tensors have a prefix; empty: config.json is its own
  std::string_view nested_text{};

  AttentionKind attention = AttentionKind::kHeads;
  NormKind norm = NormKind::kRms;
  NormPlacement norms = NormPlacement::kPre;
  QkNorm qk_norm = QkNorm::kNone;  // before RoPE, in the row's norm kind
  bool gated_mlp = true;           // false: one projection up, activation, one down
  bool fused_projections = false;  // stored as qkv_proj and gate_up_proj
  BiasRule biases = BiasRule::kNone;
  bool mlp_bias_key = false;  // honours "mlp_bias"
  std::string_view activation_key = "hidden_act";
  std::string_view default_activation = "silu";
  std::string_view norm_eps_key = "rms_norm_eps";
  double default_norm_eps = 1e-6;
  bool default_tied_embeddings = false;
  bool scale_embeddings = false;  // by sqrt(hidden_size), rounded to the compute dtype

  std::optional<int> default_vocab_size{};     // here and below: when absent; nullopt: required
  std::optional<int> default_num_heads{};      //
  std::optional<int> default_num_kv_heads{};   // nullopt: num_heads
  std::optional<int> default_head_dim{};       // nullopt: hidden_size / num_heads
  std::optional<int> default_max_positions{};  //

  WindowRule window = WindowRule::kNone;
  std::optional<int> default_window{};
  int window_pattern = 6;         // of kPattern when absent, and of kFixedPattern
  bool reads_layer_types = true;  // false: the rule holds whatever "layer_types" says
  RopeRule rope = RopeRule::kOne;
  double default_theta = 10000;
  std::string_view sliding_theta_key = "rope_local_base_freq";  // of kPerLayerType's sliding layers
  double default_sliding_theta = 10000;                         //
  bool partial_rotary = false;                                  // honours "partial_rotary_factor"
  ExpertStyle experts = ExpertStyle::kNone;
  bool latent_attention = false;  // multi-head latent attention, rotating pairs (2i, 2i+1)
  RopeLayers rope_layers = RopeLayers::kAll;
  std::array<Setting, 4> settings{};
};

std::span<const ArchSpec> supported_archs();
// Throws Error "<subject>: model_type \"x\" is not supported; supported: ...".
const ArchSpec& find_arch(std::string_view model_type, std::string_view subject);

// Which keys of config.json a family honours beyond those that all families have.
// In the order of a reader's interest: attention, windows, RoPE, MLP.
std::vector<std::string> honoured_settings(const ArchSpec& arch);

}  // namespace kvc

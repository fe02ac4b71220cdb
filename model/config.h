// config.json of a supported architecture as plain numbers, every default of the family applied.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "model/arch.h"
#include "model/moe_config.h"

namespace kvc {

class Checkpoint;

enum class RopeType { kDefault, kLinear, kLlama3, kDynamic, kYarn, kLongRope };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  double factor = 1;                            // linear, llama3, dynamic, yarn
  double low_freq_factor = 1;                   // llama3
  double high_freq_factor = 4;                  // llama3
  double original_max_position_embeddings = 0;  // llama3, yarn, longrope; tokens
  double max_position_embeddings = 0;           // dynamic; tokens
  double beta_fast = 32;                        // yarn
  double beta_slow = 1;                         // yarn
  bool truncate = true;                         // yarn: whole channels bound the ramp
  double attention_factor = 1;  // yarn, longrope: scales cos and sin, so queries and keys alike
  double mscale_all_dim = 0;    // latent attention scales its scores by it
  std::vector<double> short_factors{}, long_factors{};  // longrope; [rotary_dim / 2]
  std::int64_t rotary_dim = 0;  // leading channels of a head that rotate; the others pass
  bool interleaved = false;     // pairs (2i, 2i+1), rotated in float32; else (i, i + rotary_dim/2)

  // The angles of all positions change with the length of the text.
  bool depends_on_length() const {
    return type == RopeType::kDynamic || type == RopeType::kLongRope;
  }
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// Sizes of multi-head latent attention (DeepSeek-V2): keys and values come from one latent per
// token; all heads share one rotary key.
struct MlaConfig {
  std::int64_t q_lora_rank = 0;  // 0: queries are projected from the hidden states directly
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;  // channels of queries and keys that are not rotated
  std::int64_t qk_rope_head_dim = 0;  // channels that are
  std::int64_t v_head_dim = 0;

  std::int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  // Contents of the model's own cache per token and layer: the normed latent and the rotated key.
  std::int64_t cache_width() const { return kv_lora_rank + qk_rope_head_dim; }

  friend bool operator==(const MlaConfig&, const MlaConfig&) = default;
};

enum class Activation { kSilu, kGelu, kGeluTanh };

// What a layer's attention adds to softmax(query · key) value.
struct AttentionRule {
  // A query at position p sees positions in (p - window, p].
  std::optional<std::int64_t> window{};
  std::optional<double> scale{};  // of query · key; nullopt: 1 / sqrt(head_dim)
  double softcap = 0;             // s: scores x become s tanh(x / s); 0: none
};

// Properties in which layers may differ.
struct LayerSpec {
  std::optional<std::int64_t> window;  // sliding window in tokens
  int rope = 0;                        // index into ModelConfig::ropes; -1: no RoPE
  bool experts = false;                // a mixture of experts instead of one MLP
};

struct ModelConfig {
  const ArchSpec* arch = nullptr;
  std::string tensor_prefix = "model.";  // of the text model's tensors
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  int num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;  // tokens
  double norm_eps = 1e-6;
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;
  bool attention_bias = false;  // resolved: q, k, v have biases
  bool output_bias = false;     // o_proj has one
  bool mlp_bias = false;

  double attention_scale = 0;  // of query · key
  double score_softcap = 0;    // s: x -> s tanh(x / s) on attention scores; 0: none
  double logit_softcap = 0;    // likewise on logits
  double embedding_scale = 1;
  double residual_scale = 1;  // of what attention and MLP add
  double logit_scale = 1;

  std::optional<MoeConfig> moe{};  // of the layers with experts
  std::optional<MlaConfig> mla{};  // head_dim is then that of queries and keys, for every head

  std::vector<RopeConfig> ropes;
  std::vector<LayerSpec> layers;  // [num_layers]
  std::vector<std::int64_t> eos_token_ids;
  std::optional<std::int64_t> bos_token_id;
  std::string
      dtype;  // "bfloat16", ... of the stored weights; without weights, config.json's, or empty

  std::int64_t q_dim() const { return num_heads * head_dim; }
  std::int64_t kv_dim() const { return num_kv_heads * head_dim; }
  std::int64_t attended_dim() const { return num_heads * (mla ? mla->v_head_dim : head_dim); }
  std::int64_t rotary_width() const { return mla ? mla->qk_rope_head_dim : head_dim; }
  const LayerSpec& layer(int index) const { return layers[static_cast<std::size_t>(index)]; }
  bool depends_on_length(int layer) const;   // its RoPE does
  double attention_factor(int layer) const;  // of its RoPE; 1 without one
  std::int64_t num_parameters() const;       // of the original text model
  // Layers may share a group only if they have the same window, RoPE and heads.
  bool same_kind(int layer_a, int layer_b) const;
};

// Throws Error naming `subject` and the key if a value is unknown, missing or impossible. A config with
// a `kvconvert` object resolves to the source architecture.
ModelConfig parse_model_config(const Json& config, const std::string& subject);

// The config of a checkpoint directory, and where its files store the text model's tensors.
// Prints once to stderr if the directory has Python code of its own (auto_map), which is never run.
ModelConfig read_model_config(const Checkpoint& checkpoint);
// The same for a checkpoint whose tensors match its config (check_tensors in model/weights.h).
ModelConfig read_checked_model_config(const Checkpoint& checkpoint);

// How adjacent layers are grouped.
struct LayerRun {
  int first_layer = 0, num_layers = 0;

  int end() const { return first_layer + num_layers; }
};

// Runs of at most `layers_per_group` adjacent layers of one kind; they cover the model. The last run
// of a stretch of equal layers may be shorter.
std::vector<LayerRun> layer_runs(const ModelConfig& config, int layers_per_group);

}  // namespace kvc

// config.json of a supported architecture as plain numbers, every default of the family applied.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "model/arch.h"

namespace kvc {

enum class RopeType { kDefault, kLinear, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  double factor = 1;                            // linear, llama3
  double low_freq_factor = 1;                   // llama3
  double high_freq_factor = 4;                  // llama3
  double original_max_position_embeddings = 0;  // llama3, tokens

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  const ArchSpec* arch = nullptr;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  int num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;  // tokens
  double rms_norm_eps = 1e-6;
  bool tied_embeddings = false;
  bool attention_bias = false;  // resolved: q, k, v have biases
  bool output_bias = false;     // o_proj has one
  bool mlp_bias = false;
  RopeConfig rope;
  std::vector<std::optional<std::int64_t>> windows;  // [num_layers]; sliding window in tokens
  std::vector<std::int64_t> eos_token_ids;
  std::optional<std::int64_t> bos_token_id;
  std::string dtype;  // "bfloat16", ... as config.json says; empty if it does not

  std::int64_t q_dim() const { return num_heads * head_dim; }
  std::int64_t kv_dim() const { return num_kv_heads * head_dim; }
  std::int64_t num_parameters() const;  // of the original model
  // Layers may share a group only if their keys and values are of one kind: same window, RoPE, heads.
  bool same_kind(int layer_a, int layer_b) const;
};

// Throws Error naming `subject` and the key for anything unknown, missing or impossible. A config with a
// `kvconvert` object resolves to the architecture it was converted from.
ModelConfig parse_model_config(const Json& config, const std::string& subject);

}  // namespace kvc

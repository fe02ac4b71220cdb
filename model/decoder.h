// The only decoder-only transformer of the project. Attention is behind an interface, so
// calibration, Fisher information, the runtime's KV stores and validation run the same code. Tokens
// of several sequences are flattened into one [num_tokens, ...] batch; there is no padding
// anywhere.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "model/config.h"
#include "model/rope.h"
#include "model/weights.h"

namespace kvc {

// New tokens of one or several sequences, one sequence after the other.
struct TokenBatch {
  at::Tensor ids;                     // [num_tokens] int64
  at::Tensor positions;               // [num_tokens] int64
  std::vector<std::int64_t> lengths;  // new tokens per sequence; sum num_tokens

  // Whole sequences from position 0.
  static TokenBatch of(const std::vector<std::vector<std::int64_t>>& sequences);
};

struct AttentionInput {
  const LayerWeights& weights;
  at::Tensor hidden;  // [num_tokens, hidden_size], input of q/k/v_proj (after the layer's norm)
  at::Tensor query;   // [num_tokens, num_heads, head_dim], after q_norm, pre-RoPE
  at::Tensor key;     // [num_tokens, num_kv_heads, head_dim], with bias, before k_norm, pre-RoPE;
                      // undefined if a plan replaced k_proj
  at::Tensor value;   // [num_tokens, num_kv_heads, head_dim], with bias; undefined likewise
  // With multi-head latent attention, instead of key and value; as in MlaProjections.
  at::Tensor latent{}, rotary_key{};
};

class Attention {
 public:
  virtual ~Attention() = default;
  // Attention output before o_proj, [num_tokens, num_heads * head_dim], in the query's dtype.
  virtual at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) = 0;
  // Called after `attend`: the tokens of the batch with which the layer continues, and to which the
  // output of `attend` is limited. [num_rows] int64; nullopt: all.
  virtual std::optional<at::Tensor> rows_to_go_on() const { return std::nullopt; }
};

// Causal attention of whole sequences over their own tokens, no cache; differentiable. Honours the
// layer's rule.
class FullAttention : public Attention {
 public:
  FullAttention(const ModelConfig& config, const RopeTables& rope) : config_(config), rope_(rope) {}
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override;

 private:
  const ModelConfig& config_;
  const RopeTables& rope_;
};

AttentionRule attention_rule(const ModelConfig& config, int layer);
// RoPE of new tokens [num_tokens, num_heads, head_dim]; if it depends on the length of the text, every
// sequence has its own.
at::Tensor rotate_tokens(const RopeTables& rope, int layer, const at::Tensor& x,
                         const TokenBatch& batch);
// The same for queries; multi-head latent attention rotates only their last channels.
at::Tensor rotate_query(const ModelConfig& config, const RopeTables& rope, int layer,
                        const at::Tensor& query, const TokenBatch& batch);
// k_norm (if any) and RoPE: from AttentionInput::key to the key that attention uses. `length` is
// the text's, if `positions` are not those of its end (RopeTable::rotate).
at::Tensor finish_key(const LayerWeights& weights, const RopeTables& rope, int layer,
                      const at::Tensor& key, const at::Tensor& positions, std::int64_t length = 0);
// Causal attention of one sequence's last tokens, or all. query [num_queries, num_heads, head_dim]
// and key/value [seq_len, num_kv_heads, head_dim], keys and queries post-RoPE. [num_queries,
// num_heads * head_dim]; values, and thus the output, may have another width than keys.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionRule& rule);

// One layer: reads hidden_states [num_tokens, hidden_size] and returns those of the tokens with which
// attention continues, usually all.
at::Tensor run_layer(const ModelConfig& config, const LayerWeights& weights, int layer,
                     const at::Tensor& hidden_states, const TokenBatch& batch,
                     Attention& attention);
// Final norm and head: [num_tokens, vocab_size] in float32.
at::Tensor compute_logits(const ModelConfig& config, const ModelWeights& weights,
                          const at::Tensor& hidden_states);

// The whole model in memory.
class Decoder {
 public:
  // `replaced_kv`[layer]: the checkpoint lacks that layer's k_proj and v_proj weights. Empty: none.
  Decoder(const Checkpoint& checkpoint, at::ScalarType dtype, std::vector<bool> replaced_kv = {},
          WeightType type = WeightType::kFloat);

  const ModelConfig& config() const { return config_; }
  const RopeTables& rope() const { return rope_; }
  const LayerWeights& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  const ModelWeights& weights() const { return weights_; }
  at::ScalarType dtype() const { return dtype_; }
  std::int64_t weight_bytes() const;

  // Hidden states after the last layer, [num_tokens, hidden_size]; feed rows to compute_logits.
  at::Tensor forward(const TokenBatch& batch, Attention& attention) const;
  at::Tensor logits(const at::Tensor& hidden_states) const;  // [num_tokens, vocab_size] float32

 private:
  ModelConfig config_;
  at::ScalarType dtype_;
  RopeTables rope_;
  ModelWeights weights_;
  std::vector<LayerWeights> layers_;
};

}  // namespace kvc

// The one decoder-only transformer of the project. Attention is behind an interface, so that
// calibration, Fisher information, the runtime's KV stores and validation all run this same code.
// Tokens of several sequences are flattened into one [num_tokens, ...] batch; there is no padding
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
                      // undefined where a plan replaced k_proj
  at::Tensor value;   // [num_tokens, num_kv_heads, head_dim], with bias; undefined likewise
};

class Attention {
 public:
  virtual ~Attention() = default;
  // Attention output before o_proj, [num_tokens, num_heads * head_dim], in the query's dtype.
  virtual at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) = 0;
};

// Causal attention of whole sequences over their own tokens, no cache; differentiable. Honours
// windows.
class FullAttention : public Attention {
 public:
  FullAttention(const ModelConfig& config, const RopeTable& rope) : config_(config), rope_(rope) {}
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override;

 private:
  const ModelConfig& config_;
  const RopeTable& rope_;
};

// x / rms(x) * weight over the last axis; the mean square in float32, cast back before the product.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// k_norm (where there is one) and RoPE: from AttentionInput::key to the key that attention uses.
at::Tensor finish_key(const ModelConfig& config, const LayerWeights& weights, const RopeTable& rope,
                      const at::Tensor& key, const at::Tensor& positions);
// Causal attention of one sequence's own tokens. query [T, num_heads, head_dim] and key/value
// [T, num_kv_heads, head_dim], keys and queries post-RoPE. [T, num_heads * head_dim].
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            std::optional<std::int64_t> window);

// One layer: hidden_states [num_tokens, hidden_size] in and out.
at::Tensor run_layer(const ModelConfig& config, const LayerWeights& weights, int layer,
                     const at::Tensor& hidden_states, const TokenBatch& batch,
                     Attention& attention);
// Final norm and head: [num_tokens, vocab_size] in float32.
at::Tensor compute_logits(const ModelConfig& config, const ModelWeights& weights,
                          const at::Tensor& hidden_states);

// The whole model in memory.
class Decoder {
 public:
  // `replaced_kv`[layer]: that layer's k_proj and v_proj weights are not in the checkpoint. Empty:
  // none.
  Decoder(const Checkpoint& checkpoint, at::ScalarType dtype, std::vector<bool> replaced_kv = {});

  const ModelConfig& config() const { return config_; }
  const RopeTable& rope() const { return rope_; }
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
  RopeTable rope_;
  ModelWeights weights_;
  std::vector<LayerWeights> layers_;
};

}  // namespace kvc

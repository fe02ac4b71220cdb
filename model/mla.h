// Multi-head latent attention (DeepSeek-V2). Keys and values are linear in one latent per token, and
// one rotary key serves all heads; only these two are cached. Attention runs on keys and values
// expanded per head, or on the latents themselves.
#pragma once

#include <ATen/ATen.h>

#include "model/config.h"
#include "model/linear.h"
#include "model/norm.h"

namespace kvc {

struct MlaWeights {
  Linear q_a_proj;   // [q_lora_rank, hidden_size], or undefined
  Norm q_a_norm;     // [q_lora_rank], likewise
  Linear q_proj;     // [num_heads * qk_head_dim, q_lora_rank or hidden_size]
  Linear kv_a_proj;  // [kv_lora_rank + qk_rope_head_dim, hidden_size]
  Norm kv_a_norm;    // [kv_lora_rank]
  Linear
      kv_b_proj;  // [num_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank]: for each head the
                  // rows of its key, then those of its value

  bool defined() const { return kv_b_proj.weight.defined(); }
};

struct MlaProjections {
  at::Tensor query;       // [num_tokens, num_heads, qk_head_dim], pre-RoPE
  at::Tensor latent;      // [num_tokens, kv_lora_rank], after its norm
  at::Tensor rotary_key;  // [num_tokens, 1, qk_rope_head_dim], pre-RoPE
};

// hidden: [num_tokens, hidden_size]
MlaProjections project_mla(const MlaConfig& config, const MlaWeights& weights,
                           const at::Tensor& hidden);

struct MlaKeyValue {
  at::Tensor key;    // [num_tokens, num_heads, qk_head_dim]
  at::Tensor value;  // [num_tokens, num_heads, v_head_dim]
};

// Keys and values of all heads. latent [num_tokens, kv_lora_rank], rotary_key [num_tokens, 1,
// qk_rope_head_dim] post-RoPE.
MlaKeyValue expand_latents(const MlaConfig& config, const MlaWeights& weights,
                           const at::Tensor& latent, const at::Tensor& rotary_key);

}  // namespace kvc

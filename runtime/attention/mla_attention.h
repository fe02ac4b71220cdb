// Multi-head latent attention over a cache of latents.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "runtime/attention/prompt_attention.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// The model's own cache for n tokens.
struct LatentRows {
  at::Tensor latent;      // [n, kv_lora_rank], after its norm
  at::Tensor rotary_key;  // [n, 1, qk_rope_head_dim], post-RoPE
};

// True if attending to latents is cheaper than to expanded keys and values. Compares, for n cached tokens,
// multiplications per head: num_queries * n * (2 * kv_lora_rank + qk_rope_head_dim) with n *
// kv_lora_rank * (qk_nope_head_dim + v_head_dim) + num_queries * n * (qk_head_dim + v_head_dim).
bool prefers_latents(const MlaConfig& config, std::int64_t num_queries);

// Queries of one sequence's last tokens. query [T, num_heads, qk_head_dim] post-RoPE; query i is token rows - T + i and
// sees the rows up to itself. Scores and sums in float32. [T, num_heads * v_head_dim] in the query's dtype, which is
// the weights'. With q = [q_n; q_r], key W_k c and value W_v c: scores (W_k^T q_n) . c + q_r . k_r, output W_v sum(p
// c).
at::Tensor attend_latents(const MlaConfig& config, const MlaWeights& weights, double scale,
                          const at::Tensor& query, const LatentRows& rows);
// The same through keys and values of every head.
at::Tensor attend_expanded(const MlaConfig& config, const MlaWeights& weights, double scale,
                           const at::Tensor& query, const LatentRows& rows);

// Stores the latents of new tokens, caches[i] those of the batch's sequence i, and attends to them and
// to what the caches hold of earlier ones, which layers of a latent group rebuild. Where there are none,
// tokens of a prompt see each other unrounded by the cache's type, through prompts[i] (empty: tokens of
// no prompt). [num_tokens, num_heads * v_head_dim].
at::Tensor attend_mla(const Decoder& decoder, const LatentFactors& factors, int layer,
                      const AttentionInput& input, const TokenBatch& batch,
                      const std::vector<KvCache*>& caches, const std::vector<PromptKeys*>& prompts);

}  // namespace kvc

// Attention of one token over contiguous keys and values of one layer, on the CPU. Needs no torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/kv_rows.h"

namespace kvc {

// One token's query heads against num_tokens cached keys and values, post-RoPE. Query head h reads
// KV head h / (num_heads / num_kv_heads).
struct DecodeAttentionParams {
  const float* query = nullptr;             // [num_heads, head_dim]
  const void* key = nullptr;                // [num_tokens, num_kv_heads, head_dim]
  const void* value = nullptr;              // likewise
  KvElement element = KvElement::kFloat32;  // of key and value
  std::int64_t num_tokens = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 1;    // of the scores
  float softcap = 0;  // s: scores x, once scaled, become s tanh(x / s); 0: none
};

// The softmax of some tokens, to be combined with that of others.
struct AttentionPartial {
  float* max = nullptr;     // [num_heads] largest score
  float* sum = nullptr;     // [num_heads] sum of exp(score - max)
  float* output = nullptr;  // [num_heads, head_dim] sum of exp(score - max) * value
};

// The specification: softmax(cap(scale * query keyᵀ)) value in float32. output: [num_heads, head_dim].
void decode_attention_reference(const DecodeAttentionParams& params, float* output);
void decode_attention_partial_reference(const DecodeAttentionParams& params, std::int64_t first,
                                        std::int64_t last, const AttentionPartial& partial);

// Tokens first .. last - 1 (at least one), vectorised.
void decode_attention_partial(const DecodeAttentionParams& params, std::int64_t first,
                              std::int64_t last, const AttentionPartial& partial);

// Combines `count` partials of `num_heads` heads. output: [num_heads, head_dim].
void combine_partials(const AttentionPartial* partials, std::int64_t count, std::int64_t num_heads,
                      std::int64_t head_dim, float* output);

}  // namespace kvc

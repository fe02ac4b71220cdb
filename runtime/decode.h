// Attention of one new token over a contiguous cache: what decoding does in every plain layer.
#pragma once

#include <ATen/ATen.h>

#include "model/attention_rule.h"

namespace kvc {

// query [num_heads, head_dim] of the last of n tokens, key and value [n, num_kv_heads, head_dim]
// contiguous, post-RoPE; types float32, bfloat16, float16, keys and values alike. Scores and sums in
// float32. [num_heads * head_dim] in the query's dtype.
at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionRule& rule = {});

}  // namespace kvc

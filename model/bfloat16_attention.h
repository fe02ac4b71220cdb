// Causal attention in bfloat16 products, for inference on processors that have them.
#pragma once

#include <ATen/ATen.h>

#include "model/config.h"

namespace kvc {

// False off the CPU, for other query dtypes, if a gradient is required, and without the instructions.
bool can_attend_in_bfloat16(const at::Tensor& query, const AttentionRule& rule);

// Attention of one sequence's last tokens. query [num_queries, num_heads, head_dim], key [num_keys,
// num_kv_heads, head_dim], value [num_keys, num_kv_heads, value_dim], of any dtype (bfloat16 is not copied);
// keys and queries post-RoPE. Weights of values are rounded to bfloat16. A query's result does not depend on the
// number of queries. Memory for scores does not grow with the text. bfloat16 [num_queries, num_heads, value_dim]
at::Tensor bfloat16_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const AttentionRule& rule);

}  // namespace kvc

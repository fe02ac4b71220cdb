// Causal attention in bfloat16 products on processors that have them, for inference on the CPU.
#pragma once

#include <ATen/ATen.h>

#include "model/config.h"

namespace kvc {

// False off the CPU, for queries of other types, where a gradient is wanted, and without the instructions.
bool can_attend_in_bfloat16(const at::Tensor& query, const AttentionRule& rule);

// Of one sequence's last tokens. query [num_queries, num_heads, head_dim], key [num_keys, num_kv_heads,
// head_dim], value [num_keys, num_kv_heads, value_dim], of any type (bfloat16 is not copied); keys and
// queries post-RoPE. Weights of values are rounded to bfloat16; what a query gets does not depend on how many
// queries there are. Memory for scores does not grow with the text. bfloat16 [num_queries, num_heads, value_dim]
at::Tensor bfloat16_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const AttentionRule& rule);

}  // namespace kvc

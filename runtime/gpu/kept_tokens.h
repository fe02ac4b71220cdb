// What stays of a layer when a cache with a budget is exceeded for the first time, and what becomes of the other tokens, on
// the device that the tensors are on.
#pragma once

#include <ATen/ATen.h>

#include "core/token_policy.h"

namespace kvc {

// For one layer of one sequence: as many tokens of every KV head, not necessarily the same ones.
struct HeadTokens {
  at::Tensor key, value;  // [num_kv_heads, n, head_dim] post-RoPE
  at::Tensor positions;   // [num_kv_heads, n] int32, or undefined: token i is at position i
  at::Tensor scores;      // [num_kv_heads, n] float32, or undefined: nothing is ranked
};

// Means of tokens.
struct SlotTokens {
  at::Tensor key, value;  // [num_kv_heads, num_slots, head_dim] float32
  at::Tensor counts;      // [num_kv_heads, num_slots] float32: members
};

struct LaidOutTokens {
  HeadTokens rows;   // as `layout` says, their positions defined
  SlotTokens slots;  // undefined of a policy without
};
// all: in the order of positions, more than the layout's rows.
LaidOutTokens lay_out(const TokenPolicy& policy, const RunningLayout& layout,
                      const HeadTokens& all);

}  // namespace kvc

// Attention of the last tokens of a text over all of it, on the CPU, in bfloat16 products summed in float32.
// Needs no torch.
#pragma once

#include <cstdint>

namespace kvc {

// Numbers are bfloat16. Heads follow each other within a token, tokens at the strides (in numbers).
struct CausalAttentionParams {
  const std::uint16_t* query = nullptr;  // [num_queries, num_heads, head_dim], of the last tokens
  const std::uint16_t* key = nullptr;    // [num_keys, num_kv_heads, head_dim]
  const std::uint16_t* value = nullptr;  // [num_keys, num_kv_heads, value_dim]
  std::int64_t query_stride = 0;
  std::int64_t key_stride = 0;
  std::int64_t value_stride = 0;
  std::int64_t num_queries = 0;
  std::int64_t num_keys = 0;  // at least num_queries
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads; neighbouring heads share keys and values
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t window = 0;  // that many tokens, its own the last, are what a query sees; 0: all
  float scale = 1;          // positive
  float softcap = 0;        // s: scores x become s tanh(x / s); 0: none
  std::int64_t num_threads = 1;  // that the work is cut for; results do not depend on it
};

// Whether this processor has the instructions (AVX-512 BF16), and head_dim is even. Without them the tasks are
// those of the reference.
bool causal_attention_is_fast(std::int64_t head_dim);

// Pieces of the work that may run at the same time; the first are the longest.
std::int64_t causal_attention_tasks(const CausalAttentionParams& params);
// output: bfloat16 [num_queries, num_heads, value_dim], of which a task writes its part. Weights of values are
// rounded to bfloat16. What a query gets does not depend on how many queries there are.
void causal_attention_task(const CausalAttentionParams& params, std::int64_t task,
                           std::uint16_t* output);
// The specification, in float64.
void causal_attention_task_reference(const CausalAttentionParams& params, std::int64_t task,
                                     std::uint16_t* output);

// What one task is about: a KV head and some neighbouring queries.
struct CausalAttentionPart {
  std::int64_t kv_head;
  std::int64_t first, last;  // queries first .. last - 1
};
CausalAttentionPart causal_attention_part(const CausalAttentionParams& params, std::int64_t task);

}  // namespace kvc

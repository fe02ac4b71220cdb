// Exact attention over a prompt that is read in pieces: a piece's queries see what one layer had before
// it and the piece itself.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/config.h"

namespace kvc {

// Keys and values of one layer of one sequence's new prompt, as far as they were read, unrounded by the
// KV cache's type. Layers are read one after the other, each from its first token.
class PromptKeys {
 public:
  explicit PromptKeys(std::int64_t num_tokens) : num_tokens_(num_tokens) {}

  std::int64_t num_tokens() const { return num_tokens_; }  // of the whole prompt
  // [n, num_kv_heads, head_dim] of the next n tokens, post-RoPE. Values may be of another width.
  void append(int layer, const at::Tensor& key, const at::Tensor& value);
  // Frees what was read once it is all, until the next layer.
  void release_complete();
  // All read so far: bfloat16 where attention takes it and the keys are, otherwise float32.
  at::Tensor key() const { return key_.narrow(0, 0, read_); }
  at::Tensor value() const { return value_.narrow(0, 0, read_); }

 private:
  std::int64_t num_tokens_, read_ = 0;
  int layer_ = -1;
  at::Tensor key_, value_;  // [num_tokens, num_kv_heads, head_dim]
};

// Causal attention of the last T of n tokens. query [T, num_heads, head_dim], key and value
// [n, num_kv_heads, head_dim], post-RoPE; values may be of another width. Memory for scores does not
// grow with n * T. [T, num_heads * value width] in the query's dtype.
at::Tensor attend_prompt(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const AttentionRule& rule);

}  // namespace kvc

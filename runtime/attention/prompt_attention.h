// Exact attention over a prompt that is read in pieces: a piece's queries see the layer's earlier
// tokens and the piece itself.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "runtime/attention/segment_attention.h"

namespace kvc {

// Keys and values of one layer's first tokens.
class FirstRows {
 public:
  std::int64_t count() const { return count_; }
  at::Tensor key() const { return key_.narrow(0, 0, count_); }  // [count, num_kv_heads, head_dim]
  at::Tensor value() const { return value_.narrow(0, 0, count_); }
  // [n, num_kv_heads, head_dim]; there will be `most` rows of `type`.
  void append(const at::Tensor& key, const at::Tensor& value, std::int64_t most,
              at::ScalarType type);
  void clear();

 private:
  std::int64_t count_ = 0;
  at::Tensor key_, value_;  // [most, num_kv_heads, head_dim]
};

// Keys and values of one layer of one sequence's new prompt, as far as read, unrounded by the KV
// cache's dtype. Layers are read one after the other, each from its first token.
class PromptKeys {
 public:
  explicit PromptKeys(std::int64_t num_tokens) : num_tokens_(num_tokens) {}

  std::int64_t num_tokens() const { return num_tokens_; }  // of the whole prompt
  // None yet where `layer` is another than before.
  FirstRows& rows_of(int layer);
  // Attention of the next n tokens over all read so far: attend_prompt of keys and values
  // [n, num_kv_heads, head_dim]. They are held until the last token of the layer was read.
  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value, const AttentionRule& rule);

 private:
  std::int64_t num_tokens_;
  int layer_ = -1;
  FirstRows rows_;
};

// Causal attention of the last T of n tokens. query [T, num_heads, head_dim], key and value
// [n, num_kv_heads, head_dim], post-RoPE; values may be of another width. Memory for scores does not
// grow with n * T. [T, num_heads * value width] in the query's dtype.
at::Tensor attend_prompt(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const AttentionRule& rule);

// True if rows in another order would cost more than attend_prompt saves.
constexpr bool is_few(std::int64_t num_queries) { return num_queries < 48; }

// attend_segments, by attend_prompt where the segments hold a text's tokens 0 .. n - 1 in any order and the queries are
// its last ones, many enough.
at::Tensor attend_text(const at::Tensor& query, const at::Tensor& query_positions,
                       const std::vector<Segment>& segments, const AttentionRule& rule);

}  // namespace kvc

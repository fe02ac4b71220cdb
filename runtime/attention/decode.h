// Attention of one new token over rows of KV stores, as in decoding in every plain layer.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/config.h"
#include "runtime/attention/partial_attention.h"
#include "runtime/kernels/decode_attention.h"

namespace kvc {

// Rows first .. last - 1 of a segment.
struct RowRange {
  KvSegment segment;
  std::int64_t first = 0, last = 0;
  QuadScores scores{};  // output: scores of the segment's rows
};

// A token's query [num_heads, head_dim], post-RoPE, in the kernels' form; owns what `params` points
// to.
struct DecodeQuery {
  std::vector<float> numbers;
  DecodeAttentionParams params;

  // value_dim: channels of the values; 0: the query's
  DecodeQuery(const at::Tensor& query, std::int64_t num_kv_heads, const AttentionRule& rule,
              const RawKeys& raw_keys, std::int64_t value_dim = 0);
  DecodeQuery(const DecodeQuery&) = delete;
};

// Work that an attention's threads do afterwards: log_sum [num_heads] is that of PartialAttention.
using AfterAttention =
    std::function<void(const float* log_sum, std::int64_t thread, std::int64_t threads)>;

// query [num_heads, head_dim] post-RoPE, over all rows of the ranges (at least one), which exclude
// what the rule's window hides. Scores and sums in float32. [num_heads * head_dim] in the query's
// dtype.
at::Tensor decode_attention(const at::Tensor& query, std::int64_t num_kv_heads,
                            const std::vector<RowRange>& ranges, const AttentionRule& rule,
                            const RawKeys& raw_keys = {}, const AfterAttention& after = {});

// The same, to join with attention over other tokens.
PartialAttention decode_attention_partly(const at::Tensor& query, std::int64_t num_kv_heads,
                                         const std::vector<RowRange>& ranges,
                                         const AttentionRule& rule, const RawKeys& raw_keys = {},
                                         std::int64_t value_dim = 0);

// Combination of two layers' keys and values, channel by channel a_1 K_1 + a_2 K_2 and b_1 V_1 +
// b_2 V_2.
struct FusedChannels {  // [num_kv_heads, head_dim] each
  const float *first_key = nullptr, *second_key = nullptr;
  const float *first_value = nullptr, *second_value = nullptr;
};
// `first` and `second` have the same tokens at the same places. Otherwise as decode_attention.
at::Tensor fused_decode_attention(const at::Tensor& query, std::int64_t num_kv_heads,
                                  const std::vector<RowRange>& first,
                                  const std::vector<RowRange>& second,
                                  const FusedChannels& channels, const AttentionRule& rule,
                                  const RawKeys& raw_keys = {});

// The same for the last of n tokens, key and value [n, num_kv_heads, head_dim] contiguous,
// post-RoPE, both float32, bfloat16 or float16.
at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionRule& rule = {});

}  // namespace kvc

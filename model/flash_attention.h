// LibTorch's flash attention on a GPU: it sees causality from the end, windows and grouped queries without a mask.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/decoder.h"

namespace kvc {

struct FlashOutput {
  at::Tensor output;  // [batch_size, num_queries, num_heads, width of values]
  at::Tensor
      log_sum;  // [batch_size, num_heads, num_queries] float32: logarithms of the sums of exponentials
};

// Whether it takes these operands. Under a mask, with deterministic operators, LibTorch makes all scores in float32 instead.
bool has_flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const AttentionRule& rule);
// query [batch_size, num_queries, num_heads, head_dim], of the last tokens where causal; key and value [batch_size, seq_len,
// num_kv_heads, ..]. Windows are for causal attention only.
FlashOutput flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionRule& rule, bool is_causal);

// The factor of scores.
double attention_scale(const at::Tensor& query, const AttentionRule& rule);
// The wider width of keys and values. LibTorch's kernels want one width; zeros change neither scores nor sums.
std::int64_t common_width(const at::Tensor& key, const at::Tensor& value);
at::Tensor padded_to(const at::Tensor& x, std::int64_t width);

}  // namespace kvc

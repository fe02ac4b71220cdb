// Attention to keys and values in the pages of an engine's KV cache, or to channelwise sums of two layers' keys and values, in
// place. Does not use torch.
//
// A page holds page_tokens rows of each layer's keys, and as many of its values. A sequence fills its pages in order, so its
// row i is that of token i.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/ops/paged_codes.h"

namespace kvc {

// Keys, or values, of one layer: dense rows [num_kv_heads, head_dim] from the beginning of each page on.
struct RowPages {
  const std::uint8_t* data = nullptr;
  KvElement element = KvElement::kFloat32;  // or kBFloat16, kFloat16
  std::int64_t stride = 0;                  // bytes from one page to the next
  const float* factors = nullptr;           // [num_kv_heads, head_dim] of a row, or null: ones
};

struct PagedRowAttention {
  // A query sees sum_i keys[i] * factors and the same of values: of one source, or of two.
  struct Source {
    RowPages key{}, value{};  // keys post-RoPE
  };

  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t page_tokens = 0;
  float scale = 1, softcap = 0;  // of scores, as in DecodeAttentionParams
  std::int64_t window = 0;       // a query sees the last `window` tokens, itself included; 0: all
  std::vector<Source> sources{};

  // Softmax attention of one token of every sequence; what a sequence gets does not depend on the others, nor on the number of
  // threads. query and output [sequences, num_heads, head_dim]
  void attend(const PagedCodes::Sequences& sequences, const HeadRows& query, const HeadRows& output,
              const Parallel& parallel) const;
};

}  // namespace kvc

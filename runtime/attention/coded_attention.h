// Attention over the store of a coded layer.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/attention/partial_attention.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/compression/coding.h"

namespace kvc {

// One layer of a store.
struct CodedLayer {
  CodedView coded;
  int index = 0;  // of the layer among the store's

  int layer() const { return coded.layer(index); }
  const KeyValueStore& exact() const { return coded.store.exact[static_cast<std::size_t>(index)]; }
};

// The last query [num_heads, head_dim] post-RoPE over the coded tokens from `first` on (at least one), by
// the kernel. Not for RoPE that depends on the length of the text.
PartialAttention attend_codes_partly(const CodedLayer& layer, const at::Tensor& query,
                                     std::int64_t first);

// Keys and values of all tokens of the layer, codes first, in a text of num_tokens.
std::vector<Segment> coded_segments(const CodedLayer& layer, at::ScalarType dtype,
                                    std::int64_t num_tokens);

// Queries of one sequence's last tokens. query [T, num_heads, head_dim] post-RoPE, positions [T].
// [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_coded(const CodedLayer& layer, const at::Tensor& query,
                        const at::Tensor& positions);

}  // namespace kvc

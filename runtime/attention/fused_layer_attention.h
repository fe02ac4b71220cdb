// Attention of a layer whose keys and values are combinations of plain layers'.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/decoder.h"
#include "runtime/compression/fused_factors.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// The keys (post-RoPE) and values of the first `num_rows` rows of the source layers: a sequence's first tokens, unless
// a token policy dropped some. [num_rows, num_kv_heads, head_dim] float32
struct FusedRows {
  at::Tensor key, value;
};
FusedRows fused_rows(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                     std::int64_t num_rows);
// For averages of merged tokens. Fusion is linear and, except for form full, the same at all positions, so it commutes
// with averaging. [num_slots, num_kv_heads, head_dim] float32; undefined if there are none.
FusedRows fused_slots(const FusedFactors& factors, const KvCache& cache);
at::Tensor fused_slot_bias(const FusedFactors& factors,
                           const KvCache& cache);  // [num_slots, num_kv_heads]

// Can one query attend without writing keys and values out? Requires one or two sources of each, and
// heads that read their own number: q . (a K) = (a q) . K and P (b V) = b (P V).
bool can_fold(const FusedFactors& factors);

// Queries of one sequence's last tokens, up to the last of `positions`. query [T, num_heads, head_dim]
// post-RoPE, positions [T] ascending by one. [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_fused_layer(const Decoder& decoder, const FusedFactors& factors,
                              const KvCache& cache, const at::Tensor& query,
                              const at::Tensor& positions);

}  // namespace kvc

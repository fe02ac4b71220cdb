// Attention of a layer whose keys and values are combinations of plain layers'.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/decoder.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/policies/token_policies.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// The keys (post-RoPE) and values of the first `num_rows` rows of the source layers: a sequence's first tokens, unless
// a token policy dropped some. [num_rows, num_kv_heads, head_dim] of `type`, fused in float32
struct FusedRows {
  at::Tensor key, value;
};
FusedRows fused_rows(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                     std::int64_t num_rows, at::ScalarType type);
// Its keys alone.
at::Tensor fused_keys(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                      std::int64_t num_rows, at::ScalarType type);
// For averages of merged tokens, which are averages of what the layer reads of them: fusion is linear and, but for form
// full, the same at all positions.
SlotRows fused_slots(const FusedFactors& factors, const KvCache& cache);

// True if one query can attend without writing keys and values out. Requires one or two sources of each, and
// heads that read their own number: q . (a K) = (a q) . K and P (b V) = b (P V).
bool can_fold(const FusedFactors& factors);

// Queries of one sequence's last tokens, up to the last of `positions`. query [T, num_heads, head_dim]
// post-RoPE, positions [T] ascending by one. [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_fused_layer(const Decoder& decoder, const FusedFactors& factors,
                              const KvCache& cache, const at::Tensor& query,
                              const at::Tensor& positions);

}  // namespace kvc

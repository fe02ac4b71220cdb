// Attention of a layer whose keys and values are combinations of those that plain layers store.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/decoder.h"
#include "runtime/compression/fused_factors.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// The keys (post-RoPE) and values of a sequence's first `num_tokens` tokens. [num_tokens, num_kv_heads,
// head_dim] float32
struct FusedRows {
  at::Tensor key, value;
};
FusedRows fused_rows(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                     std::int64_t num_tokens);

// Can one query be attended to without keys and values being written out? One or two sources of each,
// all heads reading their own number: q . (a K) = (a q) . K and P (b V) = b (P V).
bool can_fold(const FusedFactors& factors);

// One sequence's queries, those of the last tokens up to positions' last. query [T, num_heads, head_dim]
// post-RoPE, positions [T] ascending by one. [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_fused_layer(const Decoder& decoder, const FusedFactors& factors,
                              const KvCache& cache, const at::Tensor& query,
                              const at::Tensor& positions);

}  // namespace kvc

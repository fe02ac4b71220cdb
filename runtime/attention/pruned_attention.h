// Attention over keys, the first of which have lost channels (runtime/store/pruned_store.h).
#pragma once

#include <ATen/ATen.h>

#include "model/decoder.h"
#include "runtime/store/pruned_store.h"

namespace kvc {

// Queries of one sequence's last tokens. query [T, num_heads, head_dim] post-RoPE, positions [T]; a missing
// channel adds nothing to a score. [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_pruned(const Decoder& decoder, int layer, const PrunedStore& store,
                         const at::Tensor& query, const at::Tensor& positions);

// The `kept` channels of every KV head with the largest scores, ascending, int64 [num_kv_heads, kept]. The
// score of a channel is its sum of squares over all keys [n, num_kv_heads, head_dim] times that over the queries
// [m, num_heads, head_dim] of all heads that read the KV head (ThinK, arXiv 2407.21018, eq. 5; both
// post-RoPE). Equal scores: lower channels.
at::Tensor important_channels(const at::Tensor& query, const at::Tensor& key, std::int64_t kept);

}  // namespace kvc

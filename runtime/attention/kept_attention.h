// Attention over a layer's rows and residual slots under a token policy (runtime/store/kept_rows.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>

#include "core/token_policy.h"
#include "model/decoder.h"
#include "runtime/attention/decode.h"
#include "runtime/policies/token_policies.h"
#include "runtime/store/kept_rows.h"

namespace kvc {

// A token's scores of the rows, for work that attention's threads do afterwards.
struct RowScores {
  AfterAttention after;  // log_sum is over rows and slots
  std::unique_ptr<float[]> memory{};
  QuadScores scores{};  // in the rows' order
};

// Queries of one sequence's last tokens, whose rows are the last ones. query [T, num_heads, head_dim] post-RoPE,
// positions [T]. Slots score q.k + alpha log(count), like that many equal tokens (ZeroMerge, eq. 8). [T,
// num_heads * head_dim] in the query's dtype. `row_scores`: null, or for a single query.
at::Tensor attend_kept(const Decoder& decoder, int layer, const KeptRows& rows,
                       const TokenPolicy& policy, const at::Tensor& query,
                       const at::Tensor& positions, RowScores* row_scores);

// The same over keys and values as tensors.
struct KeptTensors {
  at::Tensor key, value;  // [n, num_kv_heads, head_dim]
  SlotRows slots{};
};
at::Tensor attend_kept(const Decoder& decoder, int layer, const KeptTensors& kept,
                       const TokenPolicy& policy, const at::Tensor& query,
                       const at::Tensor& positions);

// What the layer's slots hold, where it lies.
SlotRows slot_rows(const KeptRows& rows, double alpha);

// alpha log(count) of every slot, [num_slots, num_kv_heads]; for a free one so small that its weight is
// zero.
at::Tensor residual_bias(const ResidualSlots& slots, std::int64_t num_kv_heads, double alpha);

}  // namespace kvc

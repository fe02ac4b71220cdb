// Keys that lose channels (ThinK, arXiv 2407.21018): how many channels and how many bytes stay.
#pragma once

#include <cstdint>

#include "core/kv_plan.h"
#include "core/token_policy.h"

namespace kvc {

// Channels of a key that stay: head_dim less the policy's share (rounded to nearest), at least one.
std::int64_t kept_channels(const TokenPolicy& policy, std::int64_t head_dim);

// Bytes of one layer of `rows` tokens; the first `pruned_rows` have lost channels. With c =
// kept_channels and b bytes per element, pruned rows and others rounded up to pages separately:
//   pruned_rows * num_kv_heads * (c + head_dim) * b + (rows - pruned_rows) * 2 * kv_dim * b
//   + num_kv_heads * ceil(head_dim / 8) once there are pruned rows: the mask of the channels
std::int64_t pruned_layer_bytes(const KvPlan& plan, const TokenPolicy& policy, std::int64_t rows,
                                std::int64_t pruned_rows, KvDtype dtype,
                                std::int64_t page_tokens = 1);

// Tokens that have lost channels after a prompt of `rows` tokens: all but the window.
std::int64_t pruned_rows_of(const TokenPolicy& policy, const KvPlan& plan, std::int64_t rows);

}  // namespace kvc

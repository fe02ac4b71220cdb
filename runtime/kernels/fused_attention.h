// Attention over channelwise sums of two stored layers' keys and values. Does not use torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

// key = first_key * K1 + second_key * K2, value = first_value * V1 + second_value * V2, post-RoPE,
// by channels; neither is ever written: q · (a K) = (a q) · K and P (b V) = b (P V).
struct FusedSegment {
  KvSegment first{}, second{};          // as many rows at the same positions, without biases
  const float* first_key = nullptr;     // [num_kv_heads, head_dim], or null: ones
  const float* second_key = nullptr;    // likewise
  const float* first_value = nullptr;   // likewise
  const float* second_value = nullptr;  // likewise
};

// The specification: rows first .. last - 1 (at least one), summed and attended to.
void fused_attention_partial_reference(const DecodeAttentionParams& params,
                                       const FusedSegment& segment, std::int64_t first,
                                       std::int64_t last, const AttentionPartial& partial);
// The same, vectorised, as precise as decode_attention_partial.
void fused_attention_partial(const DecodeAttentionParams& params, const FusedSegment& segment,
                             std::int64_t first, std::int64_t last,
                             const AttentionPartial& partial);

}  // namespace kvc

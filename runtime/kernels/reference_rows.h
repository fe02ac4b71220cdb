// Keys and values in attention's form, one head of one row at a time: for the references.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

using ReferenceRow = std::vector<double>;

// Numbers first_channel .. first_channel + count - 1 of a row.
ReferenceRow reference_row(const KvRows& rows, std::int64_t width, std::int64_t head_dim,
                           std::int64_t row, std::int64_t first_channel, std::int64_t count);
// [head_dim], after bias, norm and RoPE if the segment's keys are raw.
ReferenceRow reference_key(const DecodeAttentionParams& params, const KvSegment& segment,
                           std::int64_t row, std::int64_t kv_head);

// RoPE of a key at `position`.
void rotate_reference(const RopeAngles& rope, std::int64_t position, ReferenceRow& key);

// Softmax attention of all heads over rows first .. last - 1 of any kind.
using ReferenceReader = std::function<ReferenceRow(std::int64_t row, std::int64_t kv_head)>;
// `bias` [rows, num_kv_heads], or null
void reference_attention(const DecodeAttentionParams& params, const ReferenceReader& key,
                         const ReferenceReader& value, std::int64_t first, std::int64_t last,
                         const AttentionPartial& partial, const float* bias = nullptr);

}  // namespace kvc

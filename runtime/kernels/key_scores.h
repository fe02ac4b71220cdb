// What a token's query heads score with keys, without attending: to choose among them. Needs no torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

// scores [segment's rows, num_heads]: rows first .. last - 1 get cap(scale * query key), of keys as attention
// reads them. The segment's values and bias are not looked at.
void key_scores_reference(const DecodeAttentionParams& params, const KvSegment& segment,
                          std::int64_t first, std::int64_t last, float* scores);
void key_scores(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
                std::int64_t last, float* scores);

}  // namespace kvc

// Scores of a token's query heads with keys, without attention: to choose among keys. Does not use
// torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

// scores [segment's rows, num_heads]: rows first .. last - 1 get cap(scale * query key), of keys in
// attention's form. Does not read the segment's values and bias.
void key_scores_reference(const DecodeAttentionParams& params, const KvSegment& segment,
                          std::int64_t first, std::int64_t last, float* scores);
void key_scores(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
                std::int64_t last, float* scores);

}  // namespace kvc

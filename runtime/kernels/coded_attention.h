// Attention of one token over coded tokens: keys are rebuilt tile by tile, values summed as codes, which a
// value projection then turns into values, once per query head. Needs no torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/coded_keys.h"
#include "runtime/kernels/decode_attention.h"

namespace kvc {

// The coded tokens of one block: token i is at position positions[i], or without such at first_position + i.
struct CodedSegment {
  CodeTiles tiles{};
  const CodedKeyRows* keys = nullptr;  // [num_kv_heads], of the heads that the params speak of
  std::int64_t first_position = 0;
  const std::int32_t* positions = nullptr;  // [tokens of all tiles]

  std::int64_t position(std::int64_t token) const {
    return positions == nullptr ? first_position + token : positions[token];
  }
  // What the query of a tile from `token` on is turned back by.
  std::int64_t turned_back(std::int64_t token) const {
    return positions == nullptr ? first_position + token : 0;
  }
};

// Tokens first .. last - 1 (at least one) of a segment. partial.output: [num_heads, num_coefficients + 1],
// sums of exp(score - max) * gain * code, and last of exp(score - max) * gain. combine_partials takes that
// width for head_dim. Only params.raw_keys.rope turns keys; they have their bias and norm. The
// angles of positions 0 to kTileTokens - 1 are read whatever the segment's are. With dot products of bytes
// (has_avx512_vnni) a token's weight exp(score - max) * gain is rounded to 2^-16 of the largest of 128 tokens,
// in the sums of codes and in that of weights alike.
void coded_attention_partial_reference(const DecodeAttentionParams& params,
                                       const CodedSegment& segment, std::int64_t first,
                                       std::int64_t last, const AttentionPartial& partial);
void coded_attention_partial(const DecodeAttentionParams& params, const CodedSegment& segment,
                             std::int64_t first, std::int64_t last,
                             const AttentionPartial& partial);

}  // namespace kvc

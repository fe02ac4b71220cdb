// Attention of one token over coded tokens: keys are rebuilt tile by tile, or their codes multiplied with
// the query, and values summed as codes, which a value projection converts once per query head. Does not
// use torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/coded_keys.h"
#include "runtime/kernels/decode_attention.h"

namespace kvc {

// What token 0 of a segment has besides its codes, as the first of a text. Does nothing without key_offset.
struct FirstToken {
  const float* key_offset = nullptr;  // [num_kv_heads, head_dim], added to its keys post-RoPE
  float* score = nullptr;  // [num_heads] receives its scores, if the token is attended to
};

// The coded tokens of one block: token i is at position positions[i], or without positions at first_position
// + i.
struct CodedSegment {
  CodeTiles keys{};    // tiles with the coefficients of keys
  CodeTiles values{};  // those of values: the same tiles, or others of as many tokens
  const CodedKeyRows* rows = nullptr;  // [num_kv_heads], of the heads that the params speak of
  std::int64_t first_position = 0;
  const std::int32_t* positions = nullptr;  // [tokens of all tiles]
  FirstToken first_token{};

  bool shares_tiles() const { return keys.blocks == values.blocks; }
  std::int64_t position(std::int64_t token) const {
    return positions == nullptr ? first_position + token : positions[token];
  }
  // Position by which the query is rotated back for a tile from `token` on.
  std::int64_t turned_back(std::int64_t token) const {
    return positions == nullptr ? first_position + token : 0;
  }
};

// Tokens first .. last - 1 (at least one) of a segment. partial.output: [num_heads, coefficients of values + 1],
// sums of exp(score - max) * gain * code, and last of exp(score - max) * gain. combine_partials takes that
// width for head_dim. Only params.raw_keys.rope applies to keys; they have their bias and norm. The angles of
// positions 0 to kTileTokens - 1 are always read. With dot products of bytes (has_avx512_vnni) a token's
// weight exp(score - max) * gain is rounded to 2^-16 of the largest of 256 tokens, in sums of codes and of
// weights alike, and queries that are multiplied with rotated coefficients are rounded as rows of integers
// (integer_rows.h).
//
// What is added to token 0's values is the caller's: its weight is exp(score - log_sum).
void coded_attention_partial_reference(const DecodeAttentionParams& params,
                                       const CodedSegment& segment, std::int64_t first,
                                       std::int64_t last, const AttentionPartial& partial);
void coded_attention_partial(const DecodeAttentionParams& params, const CodedSegment& segment,
                             std::int64_t first, std::int64_t last,
                             const AttentionPartial& partial);

}  // namespace kvc

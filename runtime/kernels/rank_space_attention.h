// Attention over keys rebuilt from latents; values are summed as latents, which a value projection
// converts once per query head. Does not use torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

// Tokens of a tile, few enough that its keys stay in the processor's cache.
struct RankSpaceSegment {
  KvSegment keys{};               // without values; raw keys before bias, norm and RoPE
  KvRows latents{};               // rows of `width` numbers
  std::int64_t first_latent = 0;  // row that belongs to the first key
  std::int64_t width = 0;
  std::int64_t first_channel = 0;  // of the values' part; codes: a multiple of 32
  std::int64_t rank = 0;           // of the values' part
};

// Rows first .. last - 1 of the keys (at least one). partial.output: [num_heads, rank], sums of
// exp(score - max) * latent. combine_partials takes `rank` for head_dim.
void rank_space_attention_partial_reference(const DecodeAttentionParams& params,
                                            const RankSpaceSegment& segment, std::int64_t first,
                                            std::int64_t last, const AttentionPartial& partial);
// The same, vectorised, as precise as decode_attention_partial, added to the partial of other rows; for none
// yet, max is -infinity and the rest zero.
void add_rank_space_attention(const DecodeAttentionParams& params, const RankSpaceSegment& segment,
                              std::int64_t first, std::int64_t last,
                              const AttentionPartial& partial);

}  // namespace kvc

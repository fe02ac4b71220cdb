// Attention over keys rebuilt from latents, values summed as latents: what a value projection then turns
// into values, once per query head. Needs no torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

// A tile of tokens, few enough that its keys stay in the cache.
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
// The same, vectorised, as precise as decode_attention_partial, added to what the partial holds of other rows:
// where there are none yet, max -infinity and the rest zero.
void add_rank_space_attention(const DecodeAttentionParams& params, const RankSpaceSegment& segment,
                              std::int64_t first, std::int64_t last,
                              const AttentionPartial& partial);

}  // namespace kvc

// Attention over latents of small ranks in one launch: a block goes through its part of the tokens and rebuilds their
// keys for all of its KV heads from latents that stay in shared memory, so that these are read once, and sums values as
// latents, up to 32 query heads a product. No scratch memory; partials as two launches make them.
#pragma once

#include "runtime/kernels/cuda/attention_rank.h"

namespace kvc {

constexpr int kOnePassWarps = 8;
constexpr int kOnePassRankTiles = 5;  // of 16 summed latents that a warp's registers hold
constexpr int kOnePassMostRank = 16 * kOnePassWarps * kOnePassRankTiles;
constexpr int kOnePassStages = 3;                // of the key projection
constexpr int kOnePassLeastShared = 128 * 1024;  // bytes a block that it is compiled for

// What lies where in shared memory, keys' latents first, and how a block's work is cut: made once, before the launch.
struct OnePassLayout {
  int tiles, at_once;    // of 32 tokens; KV heads
  int kv_heads, blocks;  // of a block; which share out the KV heads
  int round_steps,
      group_steps;  // of at_once KV heads: chunks of the projection; of a group of tiles
  int key_stride, value_stride;  // numbers of a token's latents
  int rank_tiles;                // of 16 values' latents, of a warp
  int ring, stage_bytes;         // key projections: kOnePassStages times heads_at_once chunks
  int values;                    // values' latents of 16 tokens, of each warp
  int weights, weight_bytes;  // [2][tiles][heads][32]: of the tokens at hand, and of those before
  int maxima, work;           // OnePassMaxima, OnePassWork
  int bytes;
};
OnePassLayout one_pass_layout(const RankAttention& params);

struct OnePassAttention {
  RankAttention attention;
  OnePassLayout at;
};

// The one place that chooses between one launch and two, and the shape of the former; query_tiles 0: two launches.
//
// One launch takes latents of 16 bits, value ranks up to kOnePassMostRank and 16, 32, 48 or 64 rotary pairs, all of them
// rebuilt, and up to 32 query heads on a KV head, 16 where there are 64 pairs. Shared memory has to hold keys' latents of 64 tokens or
// more, a ring of their projections, values' latents and weights: of head_dim 128 and value ranks 1.5 times the key ranks
// that allows key ranks up to 416 on sm_90 and sm_100 and 288 on sm_80; blocks of sm_120 have too little of it.
// It takes, among the shapes that fit, the one that reads the fewest bytes of latents and projections a token, mostly from
// L2, whose bandwidth is what the products come closest to; but one with blocks for 7/8 of the multiprocessors, each of which
// has room for one, or else the one with the most blocks. Where two launches would read fewer, and there is work for
// every multiprocessor, they are taken: as with many query heads on few KV heads.
// multiprocessors, shared_bytes: of the device, and that a block may have.
OnePassShape one_pass_shape(const RankAttention& params, int multiprocessors, int shared_bytes);
// In how many parts its blocks share the tokens: as many as fill the multiprocessors once, or, where they divide badly,
// several times.
int one_pass_parts(const RankAttention& params, int multiprocessors);
// No shape has more.
int most_one_pass_parts(int multiprocessors, int num_sequences, int max_tiles);

// For a shape with query_tiles. shared_bytes: that a block may have.
LaunchError check_one_pass_attention(const RankAttention& params, int shared_bytes);

}  // namespace kvc

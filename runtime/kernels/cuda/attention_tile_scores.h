// Scores of 32 tokens and a KV head: their keys from latents times a projection, turned, times the query, as weights
// below their own maximum.
#pragma once

#include "runtime/kernels/cuda/attention_key_tile.h"

namespace kvc {

// The rows of the key projection that a KV head has: first channels of its pairs, then second ones.
template <class T>
struct KeyProjection {
  const T* rows;
  int pairs, stride;
  bool is_own;  // of the sequence: with neither pairs nor columns that do not exist
};

template <class T>
KVC_DEVICE KeyProjection<T> key_projection(const RankAttention& params, int sequence, int kv_head) {
  const bool is_own = !params.reads_codes() && params.keys.projections != nullptr;
  const int pairs = is_own ? params.head_dim / 2 : params.keys.pairs.num_pairs;
  const auto* rows = static_cast<const T*>(
      is_own ? params.keys.projections[sequence * params.keys.projections_stride]
             : params.keys.projection);
  return {rows + static_cast<std::int64_t>(kv_head) * 2 * pairs * params.keys.rank_stride, pairs,
          params.keys.rank_stride, is_own};
}

// For a chunk of the projection in shared memory.
template <int kPairTiles>
constexpr int kProjectionBytes = 16 * kPairTiles* kChunkStride * 2;

// Starts copies of a chunk, by all threads of the block.
template <int kPairTiles, class T, class Thread>
KVC_DEVICE void copy_projection(Thread& thread, const KeyProjection<T>& from, int chunk,
                                std::uint8_t* to) {
  constexpr int kPairs = 8 * kPairTiles;
  KVC_NO_UNROLL
  for (int piece = thread.index(); piece < 2 * kPairs * 4; piece += thread.count()) {
    const int channel = piece / 4, at = 8 * (piece % 4), rank = chunk * kRankChunk + at;
    const int pair = channel % kPairs;
    const int row = channel == pair ? pair : from.pairs + pair;
    const bool exists = !from.is_own || (pair < from.pairs && rank < from.stride);
    thread.template copy_async<16>(
        to + 2 * (channel * kChunkStride + at),
        from.rows + (exists ? static_cast<std::int64_t>(row) * from.stride + rank : 0), exists);
  }
}

// keys += projection latents of one chunk. latents: of 32 tokens, `stride` numbers a row.
template <class T, int kPairTiles, bool kTokensAreRows, class Thread>
KVC_DEVICE void add_products(Thread& thread, const T* latents, int stride, const T* projection,
                             KeyTile<kPairTiles>& keys) {
  const int lane = thread.lane();
  KVC_NO_UNROLL
  for (int k = 0; k < kRankChunk; k += 16) {
    std::uint32_t a[2][4];
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      load_token_rows<kTokensAreRows>(thread, a[m], latents, stride, 16 * m, k);
    }
    KVC_UNROLL
    for (int j = 0; j < 2 * kPairTiles; j += 2) {
      std::uint32_t b[4];
      const int channel = 8 * j + lane % 8 + 8 * (lane / 16);
      thread.load_matrices(b, projection + channel * kChunkStride + k + 8 * (lane / 8 % 2));
      const std::uint32_t even[2] = {b[0], b[1]}, odd[2] = {b[2], b[3]};
      KVC_UNROLL
      for (int m = 0; m < 2; ++m) {
        thread.multiply_add(T{}, keys.c[m][j], a[m], even);
        thread.multiply_add(T{}, keys.c[m][j + 1], a[m], odd);
      }
    }
  }
}

// Products become keys that attention reads. gains: of the lane's tokens.
template <int kPairTiles, class Thread>
KVC_DEVICE void finish_keys(Thread& thread, const RankAttention& params, int kv_head,
                            const TokenTile& tokens, const float (&gains)[2][2],
                            KeyTile<kPairTiles>& keys) {
  scale_keys(thread, params.keys, kv_head, gains, keys);
  if (params.keys.norm != nullptr) {
    normalise_keys(thread, params.keys, kv_head, params.head_dim, keys);
  }
  rotate_keys(thread, params, params.keys.pairs, 0, kv_head, tokens, keys);
}

// Where the weights of query heads go, and their maxima and sums: of the first of eight heads.
struct TileWeights {
  std::uint32_t* words;  // [heads, row_words]: 32 tokens, two a word
  int row_words;
  float *max, *sum;
};

// For query heads first_head .. first_head + 7 of the KV head's. kStored: with the keys that latents hold as they are.
template <class T, bool kStored, int kPairTiles, class Thread>
KVC_DEVICE void write_weights(Thread& thread, const RankAttention& params, int kv_head,
                              int first_head, const TokenTile& tokens,
                              const KeyTile<kPairTiles>& keys, const TileWeights& to) {
  const int lane = thread.lane(), group = params.num_heads / params.num_kv_heads;
  ScoreTile<1> scores = {};
  score_keys<T>(thread, params, params.keys.pairs, 0, kv_head, tokens.sequence, first_head, keys,
                scores);
  for (int pair = 0; kStored && pair < params.stored.pairs.num_pairs; pair += 8) {
    KeyTile<1> stored;
    read_stored_keys(thread, params, pair, kv_head, tokens, stored);
    rotate_keys(thread, params, params.stored.pairs, pair, kv_head, tokens, stored);
    score_keys<T>(thread, params, params.stored.pairs, pair, kv_head, tokens.sequence, first_head,
                  stored, scores);
  }
  WarpSoftmax<1> softmax;
  WeightFragments<1> weights;
  soften<T>(thread, scores, params.scale, params.softcap, tokens.first, tokens.last, softmax,
            weights);
  finish_sums(thread, softmax);
  if (first_head + lane / 4 < group) {
    std::uint32_t* words = to.words + lane / 4 * to.row_words;
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        words[8 * m + 4 * i + lane % 4] = weights.b[m][0][i];
      }
    }
  }
  KVC_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int head = 2 * lane + i;
    if (lane < 4 && first_head + head < group) {
      to.max[head] = softmax.state[0][i].max;
      to.sum[head] = softmax.state[0][i].sum;
    }
  }
}

}  // namespace kvc

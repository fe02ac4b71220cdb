// Grid: (tiles of 32 tokens, as many as a block has warps; KV head; sequence). The block's warps share the key
// projection, which passes through a ring of three stages of 32 columns; each warp has its own tokens.
#pragma once

#include "runtime/kernels/cuda/attention_key_tile.h"

namespace kvc {

template <int kPairTiles, class Source>
struct RebuildShared {
  static constexpr int kStages = 3;
  static constexpr int kChannels = 16 * kPairTiles;
  static constexpr int kProjectionBytes = kChannels * kChunkStride * 2;
  static constexpr int kDecodedBytes = Source::kDecodes ? kTileRows * kChunkStride * 2 : 0;
  static constexpr int kQueryStride = kChannels + kPadding;
  static KVC_HOST_DEVICE constexpr int stage_bytes(int warps) {
    return kProjectionBytes + warps * Source::kBytes;
  }
  // Behind the ring: decoded numbers of each warp.
  static constexpr int bytes(int warps) {
    return kStages * stage_bytes(warps) + warps * kDecodedBytes;
  }
};

// keys += projection latents of one chunk.
template <class T, int kPairTiles, bool kTokensAreRows, class Thread>
KVC_DEVICE void add_products(Thread& thread, const T* latents, const T* projection,
                             KeyTile<kPairTiles>& keys) {
  const int lane = thread.lane();
  KVC_NO_UNROLL
  for (int k = 0; k < kRankChunk; k += 16) {
    std::uint32_t a[2][4];
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      load_token_rows<kTokensAreRows>(thread, a[m], latents, 16 * m, k);
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

// The softmax of the tile's tokens, to scratch memory.
template <class T, class Thread>
KVC_DEVICE void write_weights(Thread& thread, const RankAttention& params, int kv_head,
                              int first_head, const TokenTile& tokens, ScoreTile<1>& scores) {
  const int lane = thread.lane(), group = params.num_heads / params.num_kv_heads;
  WarpSoftmax<1> softmax;
  WeightFragments<1> weights;
  soften<T>(thread, scores, params.scale, params.softcap, tokens.first, tokens.last, softmax,
            weights);
  finish_sums(thread, softmax);
  const std::int64_t row =
      (static_cast<std::int64_t>(tokens.sequence) * params.max_tiles + tokens.tile) *
          params.num_heads +
      kv_head * group + first_head;
  if (first_head + lane / 4 < group) {
    auto* words = static_cast<std::uint32_t*>(params.weights) + (row + lane / 4) * (kTileRows / 2);
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
      params.tile_max[row + head] = softmax.state[0][i].max;
      params.tile_sum[row + head] = softmax.state[0][i].sum;
    }
  }
}

template <class T, int kPairTiles, class Source, class Thread>
KVC_DEVICE void rebuild_scores_body(const RankAttention& params, Thread& thread) {
  using Shared = RebuildShared<kPairTiles, Source>;
  const int warps = thread.count() / 32, kv_head = thread.block_y(), sequence = thread.block_z();
  const int num_rows = params.num_rows[sequence];
  const int first_row = params.first_rows == nullptr ? 0 : params.first_rows[sequence];
  const int first_tile = thread.block_x() * warps;
  // Blocks of tokens that are not there, or that the window hides.
  if (first_tile * kTileRows >= num_rows || (first_tile + warps) * kTileRows <= first_row) {
    return;
  }
  const TokenTile tokens{sequence, first_tile + thread.warp(),
                         first_row - (first_tile + thread.warp()) * kTileRows,
                         num_rows - (first_tile + thread.warp()) * kTileRows};
  const bool is_there = tokens.last > 0 && tokens.first < kTileRows;
  const int block = Source::kGains ? kv_head / (params.num_kv_heads / params.num_blocks) : 0;
  const int rank = Source::rank(params, block, params.key_rank);
  const int chunks = (rank + kRankChunk - 1) / kRankChunk;
  const bool is_own = !Source::kDecodes && params.keys.projections != nullptr;
  const int pairs = is_own ? params.head_dim / 2 : Shared::kChannels / 2;  // that it has rows of
  const auto* projection =
      static_cast<const T*>(is_own
                                ? params.keys.projections[sequence * params.keys.projections_stride]
                                : params.keys.projection) +
      static_cast<std::int64_t>(kv_head) * 2 * pairs * params.keys.rank_stride;
  T* decoded = reinterpret_cast<T*>(thread.shared() + Shared::kStages * Shared::stage_bytes(warps) +
                                    thread.warp() * Shared::kDecodedBytes);
  const auto start = [&](int chunk) {
    if (chunk < chunks) {
      std::uint8_t* stage = thread.shared() + chunk % Shared::kStages * Shared::stage_bytes(warps);
      KVC_NO_UNROLL
      for (int piece = thread.index(); piece < Shared::kChannels * 4; piece += thread.count()) {
        const int channel = piece / 4, at = 8 * (piece % 4), rank_at = chunk * kRankChunk + at;
        const int pair = channel % (Shared::kChannels / 2);
        const int row = channel == pair ? pair : pairs + pair;
        const bool exists = !is_own || (pair < pairs && rank_at < params.keys.rank_stride);
        thread.template copy_async<16>(
            stage + 2 * (channel * kChunkStride + at),
            projection +
                (exists ? static_cast<std::int64_t>(row) * params.keys.rank_stride + rank_at : 0),
            exists);
      }
      if (is_there) {
        Source::copy(thread, params, block, sequence, tokens.tile, tokens.last, params.key_column,
                     rank, chunk * kRankChunk,
                     stage + Shared::kProjectionBytes + thread.warp() * Source::kBytes);
      }
    }
    thread.commit();
  };
  start(0);
  start(1);
  KeyTile<kPairTiles> keys = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    thread.template wait<1>();
    thread.sync();  // the chunk is there, and the stage of the one before is free
    start(chunk + 2);
    const std::uint8_t* stage =
        thread.shared() + chunk % Shared::kStages * Shared::stage_bytes(warps);
    const std::uint8_t* own = stage + Shared::kProjectionBytes + thread.warp() * Source::kBytes;
    if (is_there) {
      const T* latents = reinterpret_cast<const T*>(own);
      if constexpr (Source::kDecodes) {
        thread.sync_warp();  // the chunk before was read
        Source::decode(thread, params, block, chunk * kRankChunk, own, decoded);
        thread.sync_warp();
        latents = decoded;
      }
      add_products<T, kPairTiles, Source::kTokensAreRows>(thread, latents,
                                                          reinterpret_cast<const T*>(stage), keys);
    }
  }
  if (!is_there) {
    return;  // no barrier of the block follows
  }
  float gains[2][2] = {{1, 1}, {1, 1}};
  if constexpr (Source::kGains) {
    const std::uint8_t* tile = tile_at(params.tiles[block], sequence, tokens.tile);
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      gains[i / 2][i % 2] =
          tile_gain(params.tiles[block], tile, fragment_token(i / 2, 2 * (i % 2), thread.lane()));
    }
  }
  scale_keys(thread, params.keys, kv_head, gains, keys);
  if (params.keys.norm != nullptr) {
    normalise_keys(thread, params.keys, kv_head, params.head_dim, keys);
  }
  rotate_keys(thread, params, params.keys.pairs, 0, kv_head, tokens, keys);
  const int group = params.num_heads / params.num_kv_heads;
  for (int first_head = 0; first_head < group; first_head += 8) {
    ScoreTile<1> scores = {};
    score_keys<T>(thread, params, params.keys.pairs, 0, kv_head, sequence, first_head, keys,
                  scores);
    for (int pair = 0; pair < params.stored.pairs.num_pairs; pair += 8) {
      KeyTile<1> stored;
      read_stored_keys(thread, params, pair, kv_head, tokens, stored);
      rotate_keys(thread, params, params.stored.pairs, pair, kv_head, tokens, stored);
      score_keys<T>(thread, params, params.stored.pairs, pair, kv_head, sequence, first_head,
                    stored, scores);
    }
    write_weights<T>(thread, params, kv_head, first_head, tokens, scores);
  }
}

}  // namespace kvc

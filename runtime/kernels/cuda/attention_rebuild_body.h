// Grid: (tiles of 32 tokens, as many as a block has warps; KV head; sequence). The block's warps share the key
// projection, which passes through a ring of three stages of 32 columns; each warp has its own tokens.
#pragma once

#include "runtime/kernels/cuda/attention_rank_source.h"
#include "runtime/kernels/cuda/device_rope.h"

namespace kvc {

template <int kPairTiles, class Source>
struct RebuildShared {
  static constexpr int kStages = 3;
  static constexpr int kChannels = 16 * kPairTiles;
  static constexpr int kProjectionBytes = kChannels * kChunkStride * 2;
  static constexpr int kDecodedBytes = Source::kDecodes ? kTileRows * kChunkStride * 2 : 0;
  static constexpr int kQueryStride = kChannels + kPadding;
  static KVC_HOST_DEVICE constexpr int stage_bytes(int warps) { return kProjectionBytes + warps * Source::kBytes; }
  // Behind the ring: decoded numbers of each warp.
  static constexpr int bytes(int warps) {
    return kStages * stage_bytes(warps) + warps * kDecodedBytes;
  }
};

// Keys of 32 tokens: [16 tokens each][8 channels each][fragment]. Channels: first ones of all pairs, second ones.
template <int kPairTiles>
struct KeyTile {
  float c[2][2 * kPairTiles][4];
};

struct TokenTile {
  int sequence, tile, first, last;  // first, last: tokens that count, from the tile's first on
};

// Row of fragment number i (of m) in the tile.
KVC_HOST_DEVICE int fragment_token(int m, int i, int lane) {
  return 16 * m + lane / 4 + 8 * (i / 2);
}
// Channel of it in tile j of 8.
KVC_HOST_DEVICE int fragment_channel(int j, int i, int lane) {
  return 8 * j + 2 * (lane % 4) + i % 2;
}

// keys += projection latents of one chunk.
template <class T, int kPairTiles, bool kTokensAreRows, class Thread>
KVC_DEVICE void add_products(Thread& thread, const T* latents, const T* projection,
                             KeyTile<kPairTiles>& keys) {
  const int lane = thread.lane();
  KVC_UNROLL
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

// Scale, gain and offset of rebuilt keys; gains: of the lane's tokens [m][i / 2].
template <int kPairTiles, class Thread>
KVC_DEVICE void scale_keys(Thread& thread, const RebuiltKeys& rebuilt, int kv_head,
                           const float (&gains)[2][2], KeyTile<kPairTiles>& keys) {
  const int first = kv_head * 2 * rebuilt.pairs.num_pairs;
  KVC_UNROLL
  for (int j = 0; j < 2 * kPairTiles; ++j) {
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int channel = first + fragment_channel(j, i, thread.lane());
      const float scale = rebuilt.scale == nullptr ? 1.0f : rebuilt.scale[channel];
      const float offset = rebuilt.pairs.offset == nullptr ? 0.0f : rebuilt.pairs.offset[channel];
      KVC_UNROLL
      for (int m = 0; m < 2; ++m) {
        keys.c[m][j][i] = keys.c[m][j][i] * (scale * gains[m][0]) + offset;
        keys.c[m][j][i + 2] = keys.c[m][j][i + 2] * (scale * gains[m][1]) + offset;
      }
    }
  }
}

// RMS norm over the head's head_dim channels; channels without a pair are zeros.
template <int kPairTiles, class Thread>
KVC_DEVICE void normalise_keys(Thread& thread, const RebuiltKeys& rebuilt, int kv_head,
                               int head_dim, KeyTile<kPairTiles>& keys) {
  const float* norm = rebuilt.norm + kv_head * 2 * rebuilt.pairs.num_pairs;
  KVC_UNROLL
  for (int m = 0; m < 2; ++m) {
    KVC_UNROLL
    for (int half = 0; half < 2; ++half) {
      float squares = 0;
      KVC_UNROLL
      for (int j = 0; j < 2 * kPairTiles; ++j) {
        const float a = keys.c[m][j][2 * half], b = keys.c[m][j][2 * half + 1];
        squares += a * a + b * b;
      }
      squares += thread.shuffle_xor(squares, 1);
      squares += thread.shuffle_xor(squares, 2);
      const float factor =
          1.0f / sqrtf(squares / static_cast<float>(head_dim) + rebuilt.norm_epsilon);
      KVC_UNROLL
      for (int j = 0; j < 2 * kPairTiles; ++j) {
        KVC_UNROLL
        for (int i = 0; i < 2; ++i) {
          keys.c[m][j][2 * half + i] *= factor * norm[fragment_channel(j, i, thread.lane())];
        }
      }
    }
  }
}

// Both channels of a pair are in the same lane.
template <int kPairTiles, class Thread>
KVC_DEVICE void rotate_keys(Thread& thread, const RankAttention& params, const KeyPairs& pairs,
                            int first_pair, int kv_head, const TokenTile& tokens,
                            KeyTile<kPairTiles>& keys) {
  const int lane = thread.lane();
  const std::int32_t* angles = pairs.angles + kv_head * pairs.num_pairs + first_pair;
  KVC_UNROLL
  for (int m = 0; m < 2; ++m) {
    KVC_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int in_tile = fragment_token(m, 2 * half, lane);
      const int row = tokens.tile * kTileRows + (in_tile < tokens.last ? in_tile : tokens.last - 1);
      const std::int64_t position =
          params.positions == nullptr
              ? params.first_position + row
              : params.positions[tokens.sequence * params.positions_stride + row];
      KVC_UNROLL
      for (int j = 0; j < kPairTiles; ++j) {
        KVC_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int angle = angles[fragment_channel(j, i, lane)];
          if (angle >= 0) {
            const std::int64_t at = position * params.num_angles + angle;
            rotate_pair(params.cos[at], params.sin[at], keys.c[m][j][2 * half + i],
                        keys.c[m][j + kPairTiles][2 * half + i]);
          }
        }
      }
    }
  }
}

// scores += keys queries^T of query heads first_head .. first_head + 7 of the KV head's.
template <class T, int kPairTiles, class Thread>
KVC_DEVICE void score_keys(Thread& thread, const RankAttention& params, const KeyPairs& pairs,
                           int first_pair, int kv_head, int sequence, int first_head,
                           const KeyTile<kPairTiles>& keys, ScoreTile<1>& scores) {
  const int lane = thread.lane(), group = params.num_heads / params.num_kv_heads;
  const int head = first_head + lane / 4;
  const auto* query =
      static_cast<const T*>(params.query) +
      (static_cast<std::int64_t>(sequence) * params.num_heads + kv_head * group + head) *
          params.head_dim;
  const std::int32_t* channels = pairs.channels + kv_head * 2 * pairs.num_pairs + first_pair;
  KVC_UNROLL
  for (int k = 0; k < kPairTiles; ++k) {  // 16 channels of the tile each
    std::uint32_t b[2];
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int tile = 2 * k + i;
      // Second channels of pairs stand num_pairs behind the first.
      const int from = tile < kPairTiles ? 8 * tile : pairs.num_pairs + 8 * (tile - kPairTiles);
      std::uint32_t word = 0;
      KVC_UNROLL
      for (int next = 0; next < 2; ++next) {
        const int channel = channels[from + 2 * (lane % 4) + next];
        const bool exists = head < group && channel >= 0;
        word |= static_cast<std::uint32_t>(exists ? query[channel].bits : 0) << (16 * next);
      }
      b[i] = word;
    }
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      const auto& low = keys.c[m][2 * k];
      const auto& high = keys.c[m][2 * k + 1];
      const std::uint32_t a[4] = {pack_pair<T>(low[0], low[1]), pack_pair<T>(low[2], low[3]),
                                  pack_pair<T>(high[0], high[1]), pack_pair<T>(high[2], high[3])};
      thread.multiply_add(T{}, scores.s[m][0], a, b);
    }
  }
}

// Pairs first_pair .. first_pair + 7 that the latent holds as they are.
template <class Thread>
KVC_DEVICE void read_stored_keys(Thread& thread, const RankAttention& params, int first_pair,
                                 int kv_head, const TokenTile& tokens, KeyTile<1>& keys) {
  const StoredKeys& stored = params.stored;
  const int column = stored.first_column[kv_head], lane = thread.lane();
  KVC_UNROLL
  for (int m = 0; m < 2; ++m) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = fragment_token(m, i, lane),
                pair = first_pair + fragment_channel(0, i, lane);
      KVC_UNROLL
      for (int second = 0; second < 2; ++second) {
        float x = 0;
        if (token < tokens.last && pair < stored.num_stored) {
          x = read_number(params.latents, tokens.sequence, tokens.tile * kTileRows + token,
                          column + second * stored.num_stored + pair);
          const int at = (2 * kv_head + second) * stored.pairs.num_pairs + pair;
          x += stored.pairs.offset == nullptr ? 0.0f : stored.pairs.offset[at];
        }
        keys.c[m][second][i] = x;
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
  const auto* projection =
      static_cast<const T*>(params.keys.projection) +
      static_cast<std::int64_t>(kv_head) * Shared::kChannels * params.keys.rank_stride;
  T* decoded = reinterpret_cast<T*>(thread.shared() + Shared::kStages * Shared::stage_bytes(warps) +
                                    thread.warp() * Shared::kDecodedBytes);
  const auto start = [&](int chunk) {
    if (chunk < chunks) {
      std::uint8_t* stage = thread.shared() + chunk % Shared::kStages * Shared::stage_bytes(warps);
      for (int piece = thread.index(); piece < Shared::kChannels * 4; piece += thread.count()) {
        const int channel = piece / 4, at = 8 * (piece % 4);
        thread.template copy_async<16>(
            stage + 2 * (channel * kChunkStride + at),
            projection + static_cast<std::int64_t>(channel) * params.keys.rank_stride +
                chunk * kRankChunk + at,
            true);
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

// Keys of 32 tokens in a warp's registers: what turns rebuilt or stored ones into those that attention reads, and their
// products with a query.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/kernels/cuda/attention_rank_source.h"
#include "runtime/kernels/cuda/device_rope.h"

namespace kvc {

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
  float factor[2][2];  // of the lane's tokens
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
      factor[m][half] = 1.0f / sqrtf(squares / static_cast<float>(head_dim) + rebuilt.norm_epsilon);
    }
  }
  KVC_UNROLL
  for (int j = 0; j < 2 * kPairTiles; ++j) {
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float of_channel = norm[fragment_channel(j, i, thread.lane())];
      KVC_UNROLL
      for (int m = 0; m < 2; ++m) {
        keys.c[m][j][i] *= factor[m][0] * of_channel;
        keys.c[m][j][i + 2] *= factor[m][1] * of_channel;
      }
    }
  }
}

KVC_HOST_DEVICE int position_of(const RankAttention& params, int sequence, int row) {
  if (params.paged_positions.blocks != nullptr) {
    return *row_of_words<const std::int32_t>(params.paged_positions, sequence, row);
  }
  return params.positions == nullptr ? params.first_position + row
                                     : params.positions[sequence * params.positions_stride + row];
}

// Both channels of a pair are in the same lane.
template <int kPairTiles, class Thread>
KVC_DEVICE void rotate_keys(Thread& thread, const RankAttention& params, const KeyPairs& pairs,
                            int first_pair, int kv_head, const TokenTile& tokens,
                            KeyTile<kPairTiles>& keys) {
  const int lane = thread.lane();
  const std::int32_t* angles = pairs.angles + kv_head * pairs.num_pairs + first_pair;
  int first_angle[2][2];  // of the lane's tokens' positions
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int in_tile = fragment_token(i / 2, 2 * (i % 2), lane);
    const int row = tokens.tile * kTileRows + (in_tile < tokens.last ? in_tile : tokens.last - 1);
    first_angle[i / 2][i % 2] = position_of(params, tokens.sequence, row) * params.num_angles;
  }
  KVC_UNROLL
  for (int j = 0; j < kPairTiles; ++j) {
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int angle = angles[fragment_channel(j, i, lane)];
      if (angle < 0) {
        continue;
      }
      KVC_UNROLL
      for (int m = 0; m < 2; ++m) {
        KVC_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int at = first_angle[m][half] + angle;
          rotate_pair(params.cos[at], params.sin[at], keys.c[m][j][2 * half + i],
                      keys.c[m][j + kPairTiles][2 * half + i]);
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

// A number of a 16-bit row.
KVC_HOST_DEVICE float half_at(const std::uint8_t* row, int column, bool is_bfloat16) {
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[column];
  return is_bfloat16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
}

// Pairs first_pair .. first_pair + 7 that the latent holds as they are.
template <class Thread>
KVC_DEVICE void read_stored_keys(Thread& thread, const RankAttention& params, int first_pair,
                                 int kv_head, const TokenTile& tokens, KeyTile<1>& keys) {
  const StoredKeys& stored = params.stored;
  const DeviceRows& latents = params.latents;
  const int column = stored.first_column[kv_head], lane = thread.lane();
  const bool is_bfloat16 = latents.element == DeviceElement::kBFloat16;
  const bool is_half = is_bfloat16 || latents.element == DeviceElement::kFloat16;
  const RowPlace first_row = row_place(latents, tokens.sequence, tokens.tile * kTileRows, 0);
  KVC_UNROLL
  for (int m = 0; m < 2; ++m) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = fragment_token(m, i, lane),
                pair = first_pair + fragment_channel(0, i, lane);
      const std::uint8_t* row = first_row.channels + token * row_stride(latents);
      KVC_UNROLL
      for (int second = 0; second < 2; ++second) {
        float x = 0;
        if (token < tokens.last && pair < stored.num_stored) {
          const int from = column + second * stored.num_stored + pair;
          x = is_half
                  ? half_at(row, from, is_bfloat16)
                  : read_number(latents, tokens.sequence, tokens.tile * kTileRows + token, from);
          const int at = (2 * kv_head + second) * stored.pairs.num_pairs + pair;
          x += stored.pairs.offset == nullptr ? 0.0f : stored.pairs.offset[at];
        }
        keys.c[m][second][i] = x;
      }
    }
  }
}

}  // namespace kvc

// The scores of a tile of coded keys: levels of coefficients, tokens their rows, times a KV head's query in their terms.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/attention_codes.h"
#include "runtime/kernels/cuda/attention_rows.h"
#include "runtime/kernels/cuda/attention_tiles.h"
#include "runtime/kernels/cuda/code_levels.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// Fragments' rows as tokens: row lane / 4 + 8 half of products m is this one of the tile's. Then a weight's fragment has,
// side by side, the tokens that unpack_levels() pairs.
struct CodedTokens {
  static KVC_HOST_DEVICE int token(int m, int half, int lane) {
    return 4 * (lane / 4) + 2 * m + half;
  }
};

// A block's shared memory.
//   groups    [key groups + value groups] CodeGroup
//   queries   [key groups + mean groups, heads, 8, 2] float: a row's products with the query, divided by its head's scale
//   scales    [2, heads] float: of codes, of means
//   turns     [turned groups, 32 lanes, 8] words: cosines and sines of a lane's rows and tokens, as fragments
//   angles    [turned groups, 8] int
struct CodedShared {
  static constexpr int kStages = 2;
  int heads, key_groups, value_groups, mean_groups;
  bool turned;
  int key_bytes, value_bytes, num_angles;

  KVC_HOST_DEVICE CodedShared(const CodedAttention& params, int query_tiles)
      : heads(8 * query_tiles),
        key_groups(most_code_groups(params.codes.count)),
        value_groups(params.values == nullptr ? 0 : most_code_groups(params.head_dim)),
        mean_groups((params.means.count + kGroupCoefficients - 1) / kGroupCoefficients),
        turned(params.turned),
        key_bytes(section(params.most_key_bytes + kGroupOverrun)),
        value_bytes(params.values == nullptr ? 0
                                             : section(params.most_value_bytes + kGroupOverrun)),
        num_angles(turned_groups() > 0 ? params.num_angles : 0) {}

  static KVC_HOST_DEVICE int section(int bytes) { return (bytes + 15) / 16 * 16; }
  KVC_HOST_DEVICE int turned_groups() const { return mean_groups + (turned ? key_groups : 0); }
  KVC_HOST_DEVICE int queries() const { return 16 * (key_groups + value_groups); }
  KVC_HOST_DEVICE int scales() const { return queries() + 64 * heads * (key_groups + mean_groups); }
  KVC_HOST_DEVICE int turns() const { return scales() + 8 * heads; }
  KVC_HOST_DEVICE int angles() const { return turns() + 1024 * turned_groups(); }
  KVC_HOST_DEVICE int rings() const { return angles() + 32 * turned_groups(); }
  // A stage holds keys, values, and cosines and sines of the first token.
  KVC_HOST_DEVICE int stage_bytes() const {
    return key_bytes + value_bytes + section(8 * num_angles);
  }
  KVC_HOST_DEVICE int bytes(int warps) const { return rings() + warps * kStages * stage_bytes(); }
};

template <class T>
KVC_DEVICE T* shared_at(std::uint8_t* shared, int byte) {
  return reinterpret_cast<T*>(shared + byte);
}

// Rows that a group has: of coefficients or of means.
struct GroupRows {
  KeyRows rows;
  int first, count;
};
KVC_DEVICE GroupRows group_rows(const CodedAttention& params, const CodedShared& shared,
                                const CodeGroup* groups, int group) {
  if (group < shared.key_groups) {
    return {params.codes, groups[group].first, groups[group].count};
  }
  const int first = kGroupCoefficients * (group - shared.key_groups);
  const int left = params.means.count - first;
  return {params.means, first, left < kGroupCoefficients ? left : kGroupCoefficients};
}

// A row's products with a query head of the KV head's: a p + b q, a q - b p.
struct RowProducts {
  float cos, sin;
};
template <class Thread>
KVC_DEVICE RowProducts row_products(const Thread& thread, const CodedAttention& params,
                                    const KeyRows& rows, int row, int head) {
  const int kv_head = thread.block_y(), group = params.num_heads / params.num_kv_heads;
  const auto* query =
      static_cast<const std::uint16_t*>(params.query) +
      (static_cast<std::int64_t>(thread.block_z()) * params.num_heads + kv_head * group + head) *
          params.head_dim;
  const int first = 2 * kv_head * rows.count + row, second = first + rows.count;
  const float a = rows.weights[first], b = rows.weights[second];
  const float p = widened(params.element, query[rows.channels[first]]);
  const float q = widened(params.element, query[rows.channels[second]]);
  return {a * p + b * q, a * q - b * p};
}

// Everything of a block that is the same for all of its tiles, by all threads.
template <class Thread>
KVC_DEVICE void prepare_block(Thread& thread, const CodedAttention& params,
                              const CodedShared& shared) {
  std::uint8_t* memory = thread.shared();
  auto* groups = shared_at<CodeGroup>(memory, 0);
  const int kv_head = thread.block_y(), heads = params.num_heads / params.num_kv_heads;
  for (int i = thread.index(); i < shared.key_groups + shared.value_groups; i += thread.count()) {
    groups[i] = i < shared.key_groups ? code_group(params.keys[kv_head], i)
                                      : code_group(params.values[kv_head], i - shared.key_groups);
  }
  thread.sync();
  auto* queries = shared_at<float>(memory, shared.queries());
  const int all = shared.key_groups + shared.mean_groups;
  for (int i = thread.index(); i < all * shared.heads * kGroupCoefficients; i += thread.count()) {
    const int row = i % kGroupCoefficients, head = i / kGroupCoefficients % shared.heads;
    const GroupRows of =
        group_rows(params, shared, groups, i / (kGroupCoefficients * shared.heads));
    RowProducts products{0, 0};
    if (row < of.count && head < heads) {
      products = row_products(thread, params, of.rows, of.first + row, head);
    }
    queries[2 * i] = products.cos;
    queries[2 * i + 1] = products.sin;
  }
  const int first_turned = shared.turned ? 0 : shared.key_groups;
  auto* turns = shared_at<std::uint32_t>(memory, shared.turns());
  auto* angles = shared_at<std::int32_t>(memory, shared.angles());
  for (int i = thread.index(); i < 32 * shared.turned_groups(); i += thread.count()) {
    const int group = i / 32, lane = i % 32;
    const GroupRows of = group_rows(params, shared, groups, first_turned + group);
    int of_row[2];
    for (int next = 0; next < 2; ++next) {
      const int row = 2 * (lane % 4) + next;
      of_row[next] = row < of.count ? of.rows.angles[kv_head * of.rows.count + of.first + row] : -1;
      if (lane < 4) {
        angles[kGroupCoefficients * group + row] = of_row[next];
      }
    }
    for (int token = 0; token < 4; ++token) {
      float cos[2] = {1, 1}, sin[2] = {0, 0};
      for (int next = 0; next < 2; ++next) {
        if (of_row[next] >= 0) {
          const int at = (4 * (lane / 4) + token) * params.num_angles + of_row[next];
          cos[next] = params.cos[at] / params.cos[0];
          sin[next] = params.sin[at] / params.cos[0];
        }
      }
      turns[8 * i + token] = pack_pair<Float16>(cos[0], cos[1]);
      turns[8 * i + 4 + token] = pack_pair<Float16>(sin[0], sin[1]);
    }
  }
  thread.sync();
  // Float16 holds what is divided by its head's largest.
  auto* scales = shared_at<float>(memory, shared.scales());
  for (int i = thread.warp(); i < 2 * shared.heads; i += thread.count() / 32) {
    const int head = i % shared.heads, first = i < shared.heads ? 0 : shared.key_groups;
    const int count = i < shared.heads ? shared.key_groups : shared.mean_groups;
    float largest = 0;
    for (int j = thread.lane(); j < 16 * count; j += 32) {
      const float x = fabsf(queries[16 * ((first + j / 16) * shared.heads + head) + j % 16]);
      largest = x > largest ? x : largest;
    }
    for (int lanes = 16; lanes >= 1; lanes /= 2) {
      const float other = thread.shuffle_xor(largest, lanes);
      largest = other > largest ? other : largest;
    }
    largest = largest > 0 ? largest : 1.0f;
    for (int j = thread.lane(); j < 16 * count; j += 32) {
      queries[16 * ((first + j / 16) * shared.heads + head) + j % 16] /= largest;
    }
    if (thread.lane() == 0) {
      scales[i] = largest;
    }
  }
  thread.sync();
}

// A tile in shared memory.
struct CodedTile {
  const std::uint8_t *keys, *values;
  const float* angles;  // cosines, then sines, of its first token
};

// Levels of a group of keys: word j has the lane's rows 2 (lane % 4) and the next, of its token j.
KVC_DEVICE void unpack_keys(const CodeGroup& group, const std::uint8_t* tile, int lane,
                            std::uint32_t (&levels)[4]) {
  const int bytes = 4 * group.bits;
  const std::uint8_t* first = tile + group.byte + 2 * (lane % 4) * bytes;
  unpack_levels(group.bits, TokenPlanes{first, first + bytes, lane / 4}, levels);
}

// A group's products with a query head, of the lane's rows: {cos, sin} of one, {cos, sin} of the next.
KVC_DEVICE FourNumbers lane_products(const std::uint8_t* memory, const CodedShared& shared,
                                     int group, int head, int lane) {
  const auto* queries = reinterpret_cast<const float*>(memory + shared.queries());
  return four_floats(queries + 16 * (group * shared.heads + head) + 4 * (lane % 4));
}

// scores += the rows of two groups of coefficients that are not turned.
template <int kQueryTiles, class Thread>
KVC_DEVICE void add_groups(Thread& thread, const CodedShared& shared, const std::uint8_t* keys,
                           int group, ScoreTile<kQueryTiles>& scores) {
  const int lane = thread.lane();
  const auto* groups = reinterpret_cast<const CodeGroup*>(thread.shared());
  std::uint32_t first[4], second[4];
  unpack_keys(groups[group], keys, lane, first);
  unpack_keys(groups[group + 1], keys, lane, second);
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    const int head = 8 * n + lane / 4;
    const FourNumbers x = lane_products(thread.shared(), shared, group, head, lane);
    const FourNumbers y = lane_products(thread.shared(), shared, group + 1, head, lane);
    const std::uint32_t b[2] = {pack_pair<Float16>(x.x[0], x.x[2]),
                                pack_pair<Float16>(y.x[0], y.x[2])};
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      const std::uint32_t a[4] = {first[2 * m], first[2 * m + 1], second[2 * m], second[2 * m + 1]};
      thread.multiply_add(Float16{}, scores.s[m][n], a, b);
    }
  }
}

// scores += the rows of a turned group, of levels or, without, of ones.
template <int kQueryTiles, class Thread>
KVC_DEVICE void add_turned(Thread& thread, const CodedShared& shared, const CodedTile& tile,
                           int group, const std::uint32_t* levels, ScoreTile<kQueryTiles>& scores) {
  const int lane = thread.lane(), turned = shared.turned ? group : group - shared.key_groups;
  const auto* angles =
      shared_at<std::int32_t>(thread.shared(), shared.angles()) + kGroupCoefficients * turned;
  float cos[2] = {1, 1}, sin[2] = {0, 0};
  KVC_UNROLL
  for (int next = 0; next < 2; ++next) {
    const int angle = angles[2 * (lane % 4) + next];
    if (angle >= 0) {
      cos[next] = tile.angles[angle];
      sin[next] = tile.angles[shared.num_angles + angle];
    }
  }
  const auto* turns =
      shared_at<std::uint32_t>(thread.shared(), shared.turns()) + 8 * (32 * turned + lane);
  std::uint32_t x[8];  // cosines of the lane's tokens, sines
  KVC_UNROLL
  for (int i = 0; i < 8; ++i) {
    x[i] = levels == nullptr ? turns[i] : multiply_pairs(turns[i], levels[i % 4]);
  }
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    const FourNumbers of = lane_products(thread.shared(), shared, group, 8 * n + lane / 4, lane);
    const std::uint32_t b[2] = {pack_pair<Float16>(of.x[0] * cos[0] + of.x[1] * sin[0],
                                                   of.x[2] * cos[1] + of.x[3] * sin[1]),
                                pack_pair<Float16>(of.x[1] * cos[0] - of.x[0] * sin[0],
                                                   of.x[3] * cos[1] - of.x[2] * sin[1])};
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      const std::uint32_t a[4] = {x[2 * m], x[2 * m + 1], x[4 + 2 * m], x[4 + 2 * m + 1]};
      thread.multiply_add(Float16{}, scores.s[m][n], a, b);
    }
  }
}

// Gains of the lane's rows of products, [m][half]: codes have the bytes of four tokens side by side.
KVC_DEVICE float gain_of_token(std::uint32_t gains, int token) {
  return gain_of(static_cast<int>(gains >> (8 * token) & 0xFFu));
}

// Scores of the tile's tokens, not yet scaled.
template <int kQueryTiles, class Thread>
KVC_DEVICE void score_codes(Thread& thread, const CodedShared& shared, const DeviceTiles& tiles,
                            int num_groups, const CodedTile& tile, ScoreTile<kQueryTiles>& scores) {
  const int lane = thread.lane();
  const auto* groups = reinterpret_cast<const CodeGroup*>(thread.shared());
  if (shared.turned) {
    KVC_NO_UNROLL
    for (int group = 0; group < num_groups; ++group) {
      std::uint32_t levels[4];
      unpack_keys(groups[group], tile.keys, lane, levels);
      add_turned(thread, shared, tile, group, levels, scores);
    }
  } else {
    KVC_NO_UNROLL
    for (int group = 0; group < num_groups; group += 2) {
      add_groups(thread, shared, tile.keys, group, scores);
    }
  }
  ScoreTile<kQueryTiles> means = {};
  KVC_NO_UNROLL
  for (int group = 0; group < shared.mean_groups; ++group) {
    add_turned(thread, shared, tile, shared.key_groups + group, nullptr, means);
  }
  float gains[2][2] = {{1, 1}, {1, 1}};
  if (tiles.gain) {
    const std::uint32_t bytes =
        reinterpret_cast<const std::uint32_t*>(tile.keys + tiles.code_bytes)[lane / 4];
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      gains[i / 2][i % 2] = gain_of_token(bytes, CodedTokens::token(i / 2, i % 2, 0));
    }
  }
  const auto* scales = shared_at<float>(thread.shared(), shared.scales());
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    KVC_UNROLL
    for (int q = 0; q < 2; ++q) {
      const int head = 8 * n + 2 * (lane % 4) + q;
      const float of_codes = scales[head], of_means = scales[shared.heads + head];
      KVC_UNROLL
      for (int m = 0; m < 2; ++m) {
        KVC_UNROLL
        for (int half = 0; half < 2; ++half) {
          float& score = scores.s[m][n][2 * half + q];
          score = score * (of_codes * gains[m][half]) + of_means * means.s[m][n][2 * half + q];
        }
      }
    }
  }
}

}  // namespace kvc

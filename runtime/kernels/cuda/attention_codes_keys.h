// The scores of a tile of coded keys: codes or levels of coefficients, tokens their rows, times a KV head's query in their terms.
#pragma once

#include "runtime/kernels/cuda/attention_codes_planes.h"
#include "runtime/kernels/cuda/attention_codes_prepare.h"

namespace kvc {

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

// A turned group's products with a query head, of the lane's rows: {cos, sin} of one, {cos, sin} of the next.
KVC_DEVICE FourNumbers lane_products(const std::uint8_t* memory, const CodedShared& shared,
                                     int turned_group, int head, int lane) {
  const auto* queries = reinterpret_cast<const float*>(memory + shared.queries());
  return four_floats(queries + 16 * (turned_group * shared.heads + head) + 4 * (lane % 4));
}

// scores += the rows of a turned group, of levels or, without, of ones.
template <int kQueryTiles, class Thread>
KVC_DEVICE void add_turned(Thread& thread, const CodedShared& shared, const CodedTile& tile,
                           int turned, const std::uint32_t* levels,
                           ScoreTile<kQueryTiles>& scores) {
  const int lane = thread.lane();
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
    const FourNumbers of = lane_products(thread.shared(), shared, turned, 8 * n + lane / 4, lane);
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

// The gain of one of four tokens, whose bytes stand side by side.
KVC_DEVICE float gain_of_token(const float* gains, std::uint32_t bytes, int token) {
  return gains[bytes >> (8 * token) & 0xFFu];
}

// Scores of the tile's tokens, not yet scaled.
template <int kQueryTiles, class Thread>
KVC_DEVICE void score_codes(Thread& thread, const CodedShared& shared, const DeviceTiles& tiles,
                            int num_groups, const CodedTile& tile, ScoreTile<kQueryTiles>& scores) {
  const int lane = thread.lane();
  if (shared.turned) {
    const auto* groups = reinterpret_cast<const CodeGroup*>(thread.shared());
    KVC_NO_UNROLL
    for (int group = 0; group < num_groups; ++group) {
      std::uint32_t levels[4];
      unpack_keys(groups[group], tile.keys, lane, levels);
      add_turned(thread, shared, tile, group, levels, scores);
    }
  } else {
    score_all_widths(thread, shared, tile.keys, scores);
  }
  ScoreTile<kQueryTiles> means = {};
  KVC_NO_UNROLL
  for (int group = shared.turned_groups() - shared.mean_groups; group < shared.turned_groups();
       ++group) {
    add_turned(thread, shared, tile, group, nullptr, means);
  }
  float gains[2][2] = {{1, 1}, {1, 1}};
  if (tiles.gain) {
    const auto* of_index = shared_at<float>(thread.shared(), shared.gains());
    const std::uint32_t bytes =
        reinterpret_cast<const std::uint32_t*>(tile.keys + tiles.code_bytes)[lane / 4];
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      gains[i / 2][i % 2] = gain_of_token(of_index, bytes, CodedTokens::token(i / 2, i % 2, 0));
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

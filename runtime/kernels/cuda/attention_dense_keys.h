// Keys that are codes, as fragments of products: decoded, turned and rounded in registers, straight from a warp's tile of codes.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/kernels/cuda/attention_dense_angles.h"
#include "runtime/kernels/cuda/attention_rows.h"
#include "runtime/kernels/cuda/attention_tiles.h"

namespace kvc {

// A product's columns are channels in another order: lane / 4 has a token's four channels from `first` on, then as many from
// `second` on, of slot 4 i + lane % 4 in products 2 i and 2 i + 1. Both channels of a rotary pair are in one slot.
struct ChannelSlot {
  int first, second;
  int pair;  // the first one's, of four; -1: they are not turned
};
KVC_HOST_DEVICE ChannelSlot channel_slot(const DeviceRope& rope, int slot) {
  const bool turned = 4 * slot < rope.num_pairs;
  if (turned && !rope.interleaved) {
    return {4 * slot, rope.num_pairs + 4 * slot, 4 * slot};
  }
  return {8 * slot, 8 * slot + 4, turned ? 4 * slot : -1};
}

// A right side of products in that order, in shared memory: [kHeadDim / 16, query tiles, 32 lanes, 2] words.
template <int kHeadDim>
KVC_HOST_DEVICE constexpr int query_bytes(int query_tiles) {
  return kHeadDim / 16 * query_tiles * 32 * 8;
}

// The query heads of a KV head, times a fused layer's key factors; by all threads.
template <class T, int kHeadDim, int kQueryTiles, class Thread>
KVC_DEVICE void load_query_slots(Thread& thread, const DenseAttention& params,
                                 const AttendedRows& rows, std::uint32_t* to) {
  const DeviceRope rope = rows.raw_key ? params.raw_keys.rope : DeviceRope{};
  const int group = params.num_heads / params.num_kv_heads, kv_head = thread.block_y();
  const std::int64_t first_head =
      static_cast<std::int64_t>(thread.block_z()) * params.num_heads + kv_head * group;
  const auto* heads = static_cast<const T*>(params.query) + first_head * kHeadDim;
  const float* factor = rows.key_factor == nullptr ? nullptr : rows.key_factor + kv_head * kHeadDim;
  for (int i = thread.index(); i < query_bytes<kHeadDim>(kQueryTiles) / 4; i += thread.count()) {
    const int half = i % 2, lane = i / 2 % 32, n = i / 64 % kQueryTiles, k = i / 64 / kQueryTiles;
    const ChannelSlot slot = channel_slot(rope, 4 * (k / 2) + lane % 4);
    const int head = 8 * n + lane / 4;
    const int channel = (k % 2 == 0 ? slot.first : slot.second) + 2 * half;
    float x[2] = {0, 0};
    for (int j = 0; j < 2 && head < group; ++j) {
      x[j] = to_float(heads[head * kHeadDim + channel + j]) *
             (factor == nullptr ? 1.0f : factor[channel + j]);
    }
    to[i] = pack_pair<T>(x[0], x[1]);
  }
}

// A tile of raw keys: codes, and what is added to their numbers.
template <int kHeadDim, CodeForm kForm>
struct KeyCodes {
  const DeviceRows& rows;
  const std::uint8_t* tile;
  const float* bias;  // of the head; null: none

  KVC_DEVICE CodesPlace place(int channel) const {
    return codes_place(kForm == CodeForm::kFloat8 ? DeviceElement::kFloat8 : rows.element, channel);
  }
  KVC_DEVICE FourScales scales(int channel) const {
    return kForm == CodeForm::kPerChannel ? channel_scales<kHeadDim>(tile, channel) : FourScales{};
  }
  // Numbers before the norm, of channels whose codes and scales are at `place` and `of_channels`.
  KVC_DEVICE FourNumbers numbers(int token, int channel, const CodesPlace& place,
                                 const FourScales& of_channels) const {
    const std::uint32_t codes =
        four_codes(place, tile + token * CodeTileShape<kHeadDim>::kRowBytes);
    FourNumbers x = decode_four<kHeadDim, kForm>(rows, tile, codes, token, channel, of_channels);
    if (bias != nullptr) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        x.x[i] += bias[channel + i];
      }
    }
    return x;
  }
  // 1 / RMS of the lane's token.
  template <class Thread>
  KVC_DEVICE float inverse_norm(Thread& thread, int token, float epsilon) const {
    float squares = 0;
    KVC_NO_UNROLL
    for (int channel = 4 * (thread.lane() % 4); channel < kHeadDim; channel += 16) {
      const FourNumbers x = numbers(token, channel, place(channel), scales(channel));
      squares += x.x[0] * x.x[0] + x.x[1] * x.x[1] + x.x[2] * x.x[2] + x.x[3] * x.x[3];
    }
    squares += thread.shuffle_xor(squares, 1);
    squares += thread.shuffle_xor(squares, 2);
    return 1.0f / sqrtf(squares / kHeadDim + epsilon);
  }
};

// What happens to keys behind decoding: nothing; rotation of all pairs (i, i + head_dim / 2) by distances; or anything.
enum class KeyTurn { kNone, kHalves, kAny };
template <int kHeadDim>
KVC_HOST_DEVICE KeyTurn key_turn(const AttendedRows& rows, const DeviceRawKeys& raw,
                                 const TileAngles& angles) {
  if (!rows.raw_key) {
    return KeyTurn::kNone;
  }
  const bool halves = angles.base > 0 && 2 * raw.rope.num_pairs == kHeadDim &&
                      !raw.rope.interleaved && raw.bias == nullptr && raw.norm == nullptr &&
                      is_coded(rows.key.element);
  return halves ? KeyTurn::kHalves : KeyTurn::kAny;
}

// scores += keys queries^T; tile: of codes. query: load_query_slots()
template <class T, int kHeadDim, CodeForm kForm, KeyTurn kTurn, int kQueryTiles, class Thread>
KVC_DEVICE void add_formed_scores(Thread& thread, const AttendedRows& rows,
                                  const DeviceRawKeys& raw, const TileAngles& angles,
                                  const std::uint8_t* tile, const std::uint32_t* query,
                                  ScoreTile<kQueryTiles>& scores) {
  constexpr bool kAny = kTurn == KeyTurn::kAny;
  const int lane = thread.lane();
  const float* bias =
      kAny && raw.bias != nullptr ? raw.bias + thread.block_y() * kHeadDim : nullptr;
  const KeyCodes<kHeadDim, kForm> keys{rows.key, tile, bias};
  float inverse[4] = {1, 1, 1, 1};
  if (kAny && raw.norm != nullptr) {
    KVC_UNROLL
    for (int k = 0; k < 4; ++k) {
      inverse[k] =
          keys.inverse_norm(thread, RowTokens::token(k / 2, k % 2, lane), raw.norm_epsilon);
    }
  }
  DeviceRope rope = kTurn == KeyTurn::kNone ? DeviceRope{} : raw.rope;
  if (kTurn == KeyTurn::kHalves) {
    rope.num_pairs = kHeadDim / 2;
    rope.interleaved = false;
  }
  KVC_NO_UNROLL
  for (int i = 0; i < kHeadDim / 32; ++i) {
    const int index = 4 * i + lane % 4;
    const ChannelSlot slot = kTurn == KeyTurn::kHalves
                                 ? ChannelSlot{4 * index, kHeadDim / 2 + 4 * index, 4 * index}
                                 : channel_slot(rope, index);
    const FourScales of_channels[2] = {keys.scales(slot.first), keys.scales(slot.second)};
    const CodesPlace places[2] = {keys.place(slot.first), keys.place(slot.second)};
    const bool turns = kTurn == KeyTurn::kHalves || (kAny && slot.pair >= 0);
    FourAngles base{};
    if (turns && angles.base > 0) {
      base = base_angles(thread, angles, rope.num_pairs, slot.pair);
    }
    std::uint32_t a[2][2][4];  // [first, second][m]
    KVC_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int token = RowTokens::token(k / 2, k % 2, lane);
      FourNumbers x[2] = {keys.numbers(token, slot.first, places[0], of_channels[0]),
                          keys.numbers(token, slot.second, places[1], of_channels[1])};
      if (kAny && raw.norm != nullptr) {
        KVC_UNROLL
        for (int j = 0; j < 8; ++j) {
          x[j / 4].x[j % 4] *= inverse[k] * raw.norm[(j < 4 ? slot.first : slot.second) + j % 4];
        }
      }
      if (turns) {
        const bool by_distance = !kAny || angles.base > 0;
        turn_four(by_distance
                      ? angles_by_distance(thread, angles, base, rope.num_pairs, token, slot.pair)
                      : angles_by_position(rope, angles.rows[k], slot.pair),
                  kAny && rope.interleaved, x[0], x[1]);
      }
      KVC_UNROLL
      for (int second = 0; second < 2; ++second) {
        a[second][k / 2][k % 2] = pack_pair<T>(x[second].x[0], x[second].x[1]);
        a[second][k / 2][k % 2 + 2] = pack_pair<T>(x[second].x[2], x[second].x[3]);
      }
    }
    KVC_UNROLL
    for (int second = 0; second < 2; ++second) {
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        std::uint32_t b[2];
        two_words(query + 64 * ((2 * i + second) * kQueryTiles + n) + 2 * lane, b);
        KVC_UNROLL
        for (int m = 0; m < 2; ++m) {
          thread.multiply_add(T{}, scores.s[m][n], a[second][m], b);
        }
      }
    }
  }
}
template <class T, int kHeadDim, int kQueryTiles, class Thread>
KVC_DEVICE void add_code_scores(Thread& thread, const AttendedRows& rows, const DeviceRawKeys& raw,
                                const TileAngles& angles, const std::uint8_t* tile,
                                const std::uint32_t* query, ScoreTile<kQueryTiles>& scores) {
  const KeyTurn turn = key_turn<kHeadDim>(rows, raw, angles);
  with_code_form(rows.key, [&](auto form) {
    constexpr CodeForm kForm = decltype(form)::value;
    if (turn == KeyTurn::kNone) {
      add_formed_scores<T, kHeadDim, kForm, KeyTurn::kNone>(thread, rows, raw, angles, tile, query,
                                                            scores);
    } else if (turn == KeyTurn::kAny) {
      add_formed_scores<T, kHeadDim, kForm, KeyTurn::kAny>(thread, rows, raw, angles, tile, query,
                                                           scores);
    } else if constexpr (kForm != CodeForm::kFloat8) {
      add_formed_scores<T, kHeadDim, kForm, KeyTurn::kHalves>(thread, rows, raw, angles, tile,
                                                              query, scores);
    }
  });
}

}  // namespace kvc

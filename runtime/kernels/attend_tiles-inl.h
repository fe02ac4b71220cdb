// Attention over tiles of codes, whatever rebuilds keys and sums values.
#if defined(KVC_RUNTIME_KERNELS_ATTEND_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_ATTEND_TILES_INL_H_
#undef KVC_RUNTIME_KERNELS_ATTEND_TILES_INL_H_
#else
#define KVC_RUNTIME_KERNELS_ATTEND_TILES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <utility>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/coded_softmax-inl.h"
#include "runtime/kernels/read_ahead.h"
#include "runtime/kernels/rebuild_keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// Inlined always: compilers drop calls of functions that only prefetch.
HWY_INLINE void fetch_bytes(const void* from, std::int64_t bytes) {
  const auto* line = static_cast<const char*>(from);
  for (std::int64_t i = 0; i < bytes; i += ReadAhead::kLine) {
    __builtin_prefetch(line + i, /*to write=*/0, /*level 2=*/2);
  }
}
// A tile and the angles of its first position.
HWY_INLINE void fetch_tile(const DecodeAttentionParams& params, const CodedSegment& segment,
                           std::int64_t tile) {
  fetch_bytes(segment.keys.tile(tile), segment.keys.layout.bytes());
  if (!segment.shares_tiles()) {
    fetch_bytes(segment.values.tile(tile), segment.values.layout.bytes());
  }
  const RopeAngles& rope = params.raw_keys.rope;
  const std::int64_t row = segment.turned_back(tile * kTileTokens) * rope.num_pairs;
  const std::int64_t bytes = rope.num_pairs * static_cast<std::int64_t>(sizeof(float));
  fetch_bytes(rope.cos + row, bytes);
  fetch_bytes(rope.sin + row, bytes);
}

// Adds to the scores of token 0, `stride` numbers after another, what its keys have besides; writes them down.
inline void score_first_token(const DecodeAttentionParams& params, const FirstToken& first_token,
                              std::int64_t stride, float* scores) {
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  for (std::int64_t head = 0; head < params.num_heads; ++head) {
    const float* query = params.query + head * params.head_dim;
    const float* offset = first_token.key_offset + head / heads_per_kv * params.head_dim;
    const float product = std::inner_product(query, query + params.head_dim, offset, 0.0f);
    const float score = scores[head * stride] += params.scale * product;
    first_token.score[head] =
        params.softcap == 0 ? score : params.softcap * std::tanh(score / params.softcap);
  }
}

// Sums::Values::kTiles tiles after another: keys are rebuilt tile by tile for each KV head, and then values of all
// of them summed.
template <class Codes, class Keys, class Sums>
void attend_tiles(const DecodeAttentionParams& params, const CodedSegment& segment,
                  std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  using Values = typename Sums::Values;
  constexpr std::int64_t kTogether = Values::kTiles * kTileTokens;
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  const std::int64_t last_tile = (last + kTileTokens - 1) / kTileTokens;
  Values values(segment.values.layout);
  Codes codes(segment.keys.layout);  // of keys, one tile after the other
  Keys keys(params, segment);
  Sums sums(params.num_heads, segment.values.layout);
  AlignedVector<float> scores(static_cast<std::size_t>(params.num_heads * kTogether));
  const auto for_heads = [&](const auto& body) {
    for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      for (std::int64_t i = 0; i < heads_per_kv; i += kHeadsTogether) {
        const std::int64_t head = kv_head * heads_per_kv + i;
        body(head, std::min(kHeadsTogether, heads_per_kv - i), scores.data() + head * kTogether);
      }
    }
  };
  for (std::int64_t begin = first / kTileTokens; begin < last_tile; begin += Values::kTiles) {
    const std::int64_t tiles = std::min(Values::kTiles, last_tile - begin);
    const std::int64_t token = begin * kTileTokens;
    const TokenRange seen{std::max<std::int64_t>(0, first - token),
                          std::min(tiles * kTileTokens, last - token)};
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const std::int64_t in_group = tile * kTileTokens;
      values.read(segment.values.tile(begin + tile), tile);
      const auto [rows, gains] = [&]() -> std::pair<const std::uint8_t*, const float*> {
        if constexpr (std::is_same_v<Codes, Values>) {
          if (segment.shares_tiles()) {
            return {values.rows(tile), values.gains(tile)};
          }
        }
        codes.read(segment.keys.tile(begin + tile));
        return {codes.rows(), codes.gains()};
      }();
      if (segment.positions != nullptr) {
        keys.set_positions(segment.positions + token + in_group);
      }
      if (begin + tile + Values::kTiles < last_tile) {
        fetch_tile(params, segment, begin + tile + Values::kTiles);
      }
      std::int64_t rebuilt = -1;
      for_heads([&](std::int64_t head, std::int64_t count, float* to) {
        if (head / heads_per_kv != rebuilt) {
          rebuilt = head / heads_per_kv;
          keys.rebuild(rebuilt, rows, gains);
        }
        keys.score(head, count, segment.turned_back(token + in_group), kTogether, to + in_group);
      });
    }
    if (token + seen.first == 0 && segment.first_token.key_offset != nullptr) {
      score_first_token(params, segment.first_token, kTogether, scores.data());
    }
    for_heads([&](std::int64_t head, std::int64_t count, float* from) {
      sums.add(head, count, values, tiles, seen, params.softcap, from);
    });
  }
  sums.write(partial);
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

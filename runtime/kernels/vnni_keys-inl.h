// Keys of tiles of coded tokens as dot products of bytes, and scores of queries with them.
#if defined(KVC_RUNTIME_KERNELS_VNNI_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_VNNI_KEYS_INL_H_
#undef KVC_RUNTIME_KERNELS_VNNI_KEYS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_VNNI_KEYS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/kernels/coded_keys.h"
#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/rebuild_keys-inl.h"
#include "runtime/kernels/vnni_codes-inl.h"

#if KVC_HAS_VNNI_CODES
KVC_BEFORE_VNNI();
namespace kvc::HWY_NAMESPACE {

// Sums over `quads` quads of codes [quads, kTileTokens, kQuad] times weights [quads, kChannels, kQuad], times
// `unit`, on top of what is in `to` where there is any. to: [kChannels, kTileTokens]
template <bool kAdd>
HWY_INLINE void multiply_bytes(const std::uint8_t* codes, const std::int8_t* weights,
                               std::int64_t quads, float unit, float* to) {
  constexpr std::int64_t kChannels = CodedKeyRows::kChannels, kQuad = CodedKeyRows::kQuad;
  __m512i sums[kChannels][2];
  for (auto& of_channel : sums) {
    of_channel[0] = of_channel[1] = _mm512_setzero_si512();
  }
  for (std::int64_t quad = 0; quad < quads; ++quad, codes += kQuad * kTileTokens) {
    const __m512i first = _mm512_loadu_si512(codes), second = _mm512_loadu_si512(codes + 64);
    for (std::int64_t i = 0; i < kChannels; ++i, weights += kQuad) {
      std::int32_t four;
      std::memcpy(&four, weights, sizeof(four));
      const __m512i weight = _mm512_set1_epi32(four);
      sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], first, weight);
      sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], second, weight);
    }
  }
  const __m512 factor = _mm512_set1_ps(unit);
  for (std::int64_t i = 0; i < kChannels; ++i) {
    for (std::int64_t half = 0; half < 2; ++half, to += 16) {
      const __m512 sum = _mm512_cvtepi32_ps(sums[i][half]);
      _mm512_storeu_ps(to, kAdd ? _mm512_fmadd_ps(sum, factor, _mm512_loadu_ps(to))
                                : _mm512_mul_ps(sum, factor));
    }
  }
}

// Keys of one KV head and tile, in turn.
class VnniKeys {
 public:
  explicit VnniKeys(const DecodeAttentionParams& params)
      : params_(params),
        rope_(params.raw_keys.rope),
        turns_(rope_),
        sums_(static_cast<std::size_t>((params.head_dim + CodedKeyRows::kChannels) * kTileTokens)),
        query_(static_cast<std::size_t>(kHeadsTogether * params.head_dim)) {}

  // As TileKeys'.
  void set_positions(const std::int32_t* positions) { turns_.set(positions); }

  // codes: VnniCodes::quads of the tile
  void rebuild(const CodedKeyRows& rows, const std::uint8_t* codes) {
    constexpr std::int64_t kChannels = CodedKeyRows::kChannels;
    rows_ = &rows;
    for (std::int64_t channel = 0; channel < params_.head_dim; channel += kChannels) {
      float* to = sums_.data() + channel * kTileTokens;
      multiply_bytes<false>(codes, rows.high(channel), rows.num_quads(), 256, to);
      if (rows.num_wide() > 0) {
        multiply_bytes<true>(codes, rows.low(channel), rows.num_wide() / CodedKeyRows::kQuad, 1,
                             to);
      }
    }
  }

  // Of query heads head .. head + count - 1 with the keys that were rebuilt last, whose first is at
  // `position`. gains: [kTileTokens], or null for ones. scores: `count` rows, `stride` apart.
  void score(std::int64_t head, std::int64_t count, const float* gains, std::int64_t position,
             std::int64_t stride, float* scores) {
    for (std::int64_t i = 0; i < count; ++i) {
      turn_query_back(params_, rope_, head + i, position, query_.data() + i * params_.head_dim);
    }
    if (gains != nullptr) {
      score_all<true>(count, gains, stride, scores);
    } else {
      score_all<false>(count, gains, stride, scores);
    }
  }

 private:
  struct Key {
    __m512 tokens[2];
  };

  template <bool kGains>
  HWY_INLINE Key key(std::int64_t channel, const float* gains) const {
    const float* sums = sums_.data() + channel * kTileTokens;
    const __m512 scale = _mm512_set1_ps(rows_->scale(channel));
    const __m512 offset = _mm512_set1_ps(rows_->offset(channel));
    const __m512 mean = _mm512_set1_ps(rows_->mean(channel));
    Key key;
    for (int half = 0; half < 2; ++half) {
      const __m512 sum = _mm512_loadu_ps(sums + 16 * half);
      if constexpr (kGains) {
        key.tokens[half] = _mm512_fmadd_ps(_mm512_fmadd_ps(sum, scale, offset),
                                           _mm512_loadu_ps(gains + 16 * half), mean);
      } else {
        key.tokens[half] = _mm512_fmadd_ps(sum, scale, _mm512_add_ps(offset, mean));
      }
    }
    return key;
  }
  HWY_INLINE void add(std::int64_t channel, const Key& key, Key (&sums)[kHeadsTogether]) const {
    for (std::int64_t i = 0; i < kHeadsTogether; ++i) {
      const __m512 q =
          _mm512_set1_ps(query_[static_cast<std::size_t>(i * params_.head_dim + channel)]);
      sums[i].tokens[0] = _mm512_fmadd_ps(q, key.tokens[0], sums[i].tokens[0]);
      sums[i].tokens[1] = _mm512_fmadd_ps(q, key.tokens[1], sums[i].tokens[1]);
    }
  }

  template <bool kGains>
  void score_all(std::int64_t count, const float* gains, std::int64_t stride, float* scores) const {
    Key sums[kHeadsTogether];
    for (Key& of_head : sums) {
      of_head.tokens[0] = of_head.tokens[1] = _mm512_setzero_ps();
    }
    for (std::int64_t pair = 0; pair < rope_.num_pairs; ++pair) {
      const std::int64_t first = first_of(rope_, pair), second = second_of(rope_, pair);
      const Key a = key<kGains>(first, gains), b = key<kGains>(second, gains);
      const float *cos = turns_.cos(pair), *sin = turns_.sin(pair);
      Key turned_a, turned_b;
      for (int half = 0; half < 2; ++half) {
        const __m512 c = _mm512_loadu_ps(cos + 16 * half), s = _mm512_loadu_ps(sin + 16 * half);
        const __m512 x = a.tokens[half], y = b.tokens[half];
        turned_a.tokens[half] = _mm512_fnmadd_ps(y, s, _mm512_mul_ps(x, c));
        turned_b.tokens[half] = _mm512_fmadd_ps(x, s, _mm512_mul_ps(y, c));
      }
      add(first, turned_a, sums);
      add(second, turned_b, sums);
    }
    for (std::int64_t channel = 2 * rope_.num_pairs; channel < params_.head_dim; ++channel) {
      add(channel, key<kGains>(channel, gains), sums);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      _mm512_storeu_ps(scores + i * stride, sums[i].tokens[0]);
      _mm512_storeu_ps(scores + i * stride + 16, sums[i].tokens[1]);
    }
  }

  const DecodeAttentionParams& params_;
  RopeAngles rope_;
  TileTurns turns_;
  const CodedKeyRows* rows_ = nullptr;
  std::vector<float> sums_;   // [head_dim, kTileTokens], integers in units of the rows' scales
  std::vector<float> query_;  // [kHeadsTogether, head_dim]
};

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVC_HAS_VNNI_CODES

#endif

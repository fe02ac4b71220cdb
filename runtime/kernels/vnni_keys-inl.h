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

// Integer products of codes and a block of channels: [channels][tokens of a tile by halves].
struct ChannelSums {
  __m512i of[CodedKeyRows::kChannels][2];

  // Adds sums over `quads` quads of codes [quads, kTileTokens, kQuad] times weights [quads, kChannels, kQuad].
  HWY_INLINE void add(const std::uint8_t* codes, const std::int8_t* weights, std::int64_t quads) {
    constexpr std::int64_t kQuad = CodedKeyRows::kQuad;
    for (std::int64_t quad = 0; quad < quads; ++quad, codes += kQuad * kTileTokens) {
      const __m512i first = _mm512_loadu_si512(codes), second = _mm512_loadu_si512(codes + 64);
      for (auto& sums : of) {
        std::int32_t four;
        std::memcpy(&four, weights, sizeof(four));
        weights += kQuad;
        const __m512i weight = _mm512_set1_epi32(four);
        sums[0] = _mm512_dpbusd_epi32(sums[0], first, weight);
        sums[1] = _mm512_dpbusd_epi32(sums[1], second, weight);
      }
    }
  }
};

// Keys of one KV head and tile, in turn.
class VnniKeys {
 public:
  explicit VnniKeys(const DecodeAttentionParams& params)
      : params_(params),
        rope_(params.raw_keys.rope),
        turns_(rope_),
        keys_(static_cast<std::size_t>((params.head_dim + CodedKeyRows::kChannels) * kTileTokens)),
        query_(static_cast<std::size_t>(kHeadsTogether * params.head_dim)) {}

  // As TileKeys'.
  void set_positions(const std::int32_t* positions) { turns_.set(positions); }

  // codes: VnniCodes::quads of the tile; gains [kTileTokens], or null for ones.
  void rebuild(const CodedKeyRows& rows, const std::uint8_t* codes, const float* gains) {
    for (std::int64_t channel = 0; channel < params_.head_dim; channel += CodedKeyRows::kChannels) {
      if (gains == nullptr) {
        rebuild_block<false>(rows, channel, codes, gains);
      } else {
        rebuild_block<true>(rows, channel, codes, gains);
      }
    }
  }

  // Scores of query heads head .. head + count - 1 with the keys rebuilt last, whose first is at
  // `position`. scores: `count` rows, `stride` apart.
  void score(std::int64_t head, std::int64_t count, std::int64_t position, std::int64_t stride,
             float* scores) {
    for (std::int64_t i = 0; i < count; ++i) {
      turn_query_back(params_, rope_, head + i, position, query_.data() + i * params_.head_dim);
    }
    Key sums[kHeadsTogether];
    for (Key& of_head : sums) {
      of_head.tokens[0] = of_head.tokens[1] = _mm512_setzero_ps();
    }
    for (std::int64_t pair = 0; pair < rope_.num_pairs; ++pair) {
      const std::int64_t first = first_of(rope_, pair), second = second_of(rope_, pair);
      const Key a = key(first), b = key(second);
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
      add(channel, key(channel), sums);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      _mm512_storeu_ps(scores + i * stride, sums[i].tokens[0]);
      _mm512_storeu_ps(scores + i * stride + 16, sums[i].tokens[1]);
    }
  }

 private:
  struct Key {
    __m512 tokens[2];
  };

  // CodedKeyRows::kChannels channels from `channel` on.
  template <bool kGains>
  void rebuild_block(const CodedKeyRows& rows, std::int64_t channel, const std::uint8_t* codes,
                     const float* gains) {
    ChannelSums sums;
    for (auto& of_channel : sums.of) {
      of_channel[0] = of_channel[1] = _mm512_setzero_si512();
    }
    sums.add(codes, rows.high(channel), rows.num_quads());
    for (auto& of_channel : sums.of) {
      of_channel[0] = _mm512_slli_epi32(of_channel[0], 8);
      of_channel[1] = _mm512_slli_epi32(of_channel[1], 8);
    }
    sums.add(codes, rows.low(channel), rows.num_wide() / CodedKeyRows::kQuad);
    float* to = keys_.data() + channel * kTileTokens;
    for (std::int64_t i = 0; i < CodedKeyRows::kChannels; ++i, to += kTileTokens) {
      const __m512 scale = _mm512_set1_ps(rows.scale(channel + i));
      const __m512 offset = _mm512_set1_ps(rows.offset(channel + i));
      const __m512 mean = _mm512_set1_ps(rows.mean(channel + i));
      for (std::int64_t half = 0; half < 2; ++half) {
        const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums.of[i][half]), scale, offset);
        _mm512_storeu_ps(to + 16 * half,
                         kGains ? _mm512_fmadd_ps(sum, _mm512_loadu_ps(gains + 16 * half), mean)
                                : _mm512_add_ps(sum, mean));
      }
    }
  }

  HWY_INLINE Key key(std::int64_t channel) const {
    const float* tokens = keys_.data() + channel * kTileTokens;
    return {{_mm512_loadu_ps(tokens), _mm512_loadu_ps(tokens + 16)}};
  }
  HWY_INLINE void add(std::int64_t channel, const Key& key, Key (&sums)[kHeadsTogether]) const {
    for (std::int64_t i = 0; i < kHeadsTogether; ++i) {
      const __m512 q =
          _mm512_set1_ps(query_[static_cast<std::size_t>(i * params_.head_dim + channel)]);
      sums[i].tokens[0] = _mm512_fmadd_ps(q, key.tokens[0], sums[i].tokens[0]);
      sums[i].tokens[1] = _mm512_fmadd_ps(q, key.tokens[1], sums[i].tokens[1]);
    }
  }

  const DecodeAttentionParams& params_;
  RopeAngles rope_;
  TileTurns turns_;
  std::vector<float> keys_;   // [head_dim, kTileTokens], before RoPE
  std::vector<float> query_;  // [kHeadsTogether, head_dim]
};

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVC_HAS_VNNI_CODES

#endif

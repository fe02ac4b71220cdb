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
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/rebuild_keys-inl.h"
#include "runtime/kernels/vnni_quads-inl.h"

#if KVC_HAS_VNNI_CODES
KVC_BEFORE_VNNI();
namespace kvc::HWY_NAMESPACE {

// Keys of one KV head and tile, in turn.
class VnniKeys {
 public:
  VnniKeys(const DecodeAttentionParams& params, const CodedSegment& segment)
      : params_(params),
        rows_(segment.rows),
        rope_(params.raw_keys.rope),
        turns_(rope_),
        keys_(static_cast<std::size_t>(params.head_dim * kTileTokens)),
        query_(static_cast<std::size_t>(kHeadsTogether * params.head_dim)) {}

  // As TileKeys'.
  void set_positions(const std::int32_t* positions) { turns_.set(positions); }

  void rebuild(std::int64_t kv_head, const std::uint8_t* codes, const float* gains) {
    const CodedKeyRows& rows = rows_[kv_head];
    for (std::size_t i = 0; i < rows.bases().size(); ++i) {
      const IntegerRows& basis = rows.bases()[i];
      const std::int32_t* channels = rows.channels(static_cast<std::int64_t>(i));
      quads_.resize(static_cast<std::size_t>(basis.num_quads()));
      for (std::int64_t quad = 0; quad < basis.num_quads(); ++quad) {
        quads_[static_cast<std::size_t>(quad)] = basis.has_run()
                                                     ? read_quad<true>(basis, quad, codes)
                                                     : read_quad<false>(basis, quad, codes);
      }
      for (std::int64_t row = 0; row < basis.num_rows(); row += IntegerRows::kRows) {
        if (gains == nullptr) {
          rebuild_block<false>(rows, basis, row, channels, nullptr);
        } else {
          rebuild_block<true>(rows, basis, row, channels, gains);
        }
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

  // IntegerRows::kRows rows of a basis from `row` on.
  template <bool kGains>
  void rebuild_block(const CodedKeyRows& rows, const IntegerRows& basis, std::int64_t row,
                     const std::int32_t* channels, const float* gains) {
    constexpr std::int64_t kRows = IntegerRows::kRows, kQuad = IntegerRows::kQuad;
    RowSums<kRows> sums;
    sums.clear();
    const std::int8_t* weights = basis.high(row);
    for (std::int64_t quad = 0; quad < basis.num_quads(); ++quad, weights += kRows * kQuad) {
      sums.add(quads_[static_cast<std::size_t>(quad)], weights);
    }
    sums.widen();
    weights = basis.low(row);
    for (std::int64_t c = 0; c < basis.num_wide(); c += kQuad, weights += kRows * kQuad) {
      sums.add(quads_[static_cast<std::size_t>(c / kQuad)], weights);
    }
    const std::int64_t count = std::min(kRows, basis.num_rows() - row);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t channel = channels[row + i];
      float* to = keys_.data() + channel * kTileTokens;
      const __m512 scale = _mm512_set1_ps(basis.scale(row + i));
      const __m512 offset = _mm512_set1_ps(rows.offset(channel));
      const __m512 mean = _mm512_set1_ps(rows.mean(channel));
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
  const CodedKeyRows* rows_;
  RopeAngles rope_;
  TileTurns turns_;
  AlignedVector<CodeQuad> quads_;
  std::vector<float> keys_;   // [head_dim, kTileTokens], before RoPE
  std::vector<float> query_;  // [kHeadsTogether, head_dim]
};

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVC_HAS_VNNI_CODES

#endif

// Scores of keys whose codes stay integers.
#if defined(KVC_RUNTIME_KERNELS_INT16_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_INT16_SCORES_INL_H_
#undef KVC_RUNTIME_KERNELS_INT16_SCORES_INL_H_
#else
#define KVC_RUNTIME_KERNELS_INT16_SCORES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "runtime/kernels/int16_dot-inl.h"
#include "runtime/kernels/int16_queries-inl.h"
#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/read_ahead.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_INT16_DOT

// Scales and minima of a head and a group of rows, {[head_dim], [head_dim]}, for keys (code << 16 -
// bits) * scale / 2^16 + minimum in fixed point. Returns the value of a key's unit.
template <class Row>
float narrow_scales(const std::uint16_t* scale, const std::uint16_t* minimum, std::int64_t head_dim,
                    std::int16_t* to) {
  const auto load = [](const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  };
  constexpr float kLevels = (1 << Row::kBits) - 1;
  const __m512 levels = _mm512_set1_ps(kLevels);
  __m512 largest = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < head_dim; i += 16) {
    const __m512 low = load(minimum + i);
    const __m512 high = _mm512_fmadd_ps(levels, load(scale + i), low);
    largest = _mm512_max_ps(largest, _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
  }
  // Rotation enlarges a pair by at most sqrt(2).
  const float most = 1.41422f * _mm512_reduce_max_ps(largest);
  const float factor = most == 0 ? 0 : 16380 / most;
  const __m512 of_scale = _mm512_set1_ps(factor * (kLevels + 1));
  const __m512 of_minimum = _mm512_set1_ps(factor);
  const __m512 half = _mm512_set1_ps(0.5f);  // products are rounded down
  for (std::int64_t i = 0; i < head_dim; i += kRun) {
    _mm512_storeu_si512(to + i, to_int16(_mm512_mul_ps(of_scale, load(scale + i)),
                                         _mm512_mul_ps(of_scale, load(scale + i + 16))));
    _mm512_storeu_si512(to + head_dim + i,
                        to_int16(_mm512_fmadd_ps(of_minimum, load(minimum + i), half),
                                 _mm512_fmadd_ps(of_minimum, load(minimum + i + 16), half)));
  }
  return most / 16380;
}

// Scores of kTokens rows, 1 or 4.
template <class Row, bool kVnni, int kTokens>
HWY_INLINE void int16_score_rows(const std::uint8_t* codes, std::int64_t stride,
                                 std::int64_t head_dim, const std::int16_t* angles,
                                 const std::int16_t* scales, const std::int16_t* query,
                                 const Vec& units, float* scores, ReadAhead& ahead) {
  const std::int64_t half = head_dim / 2;
  __m512i sums[kTokens][kQuad];
  for (auto& of_token : sums) {
    for (__m512i& sum : of_token) {
      sum = _mm512_setzero_si512();
    }
  }
  for (std::int64_t channel = 0; channel < half; channel += kRun) {
    const char* lines = ahead.lines(2 * kTokens / steps_per_line<Row>());
    const auto key = [&](const std::uint8_t* row, std::int64_t at) {
      return _mm512_add_epi16(
          _mm512_mulhi_epu16(load_high_run<Row, kVnni>(row, at), _mm512_loadu_si512(scales + at)),
          _mm512_loadu_si512(scales + head_dim + at));
    };
    __m512i first[kTokens], second[kTokens];
    for (int token = 0; token < kTokens; ++token) {
      fetch_line<Row>(lines, token);
      const __m512i a = key(codes + token * stride, channel);
      const __m512i b = key(codes + token * stride, channel + half);
      const __m512i cos = _mm512_loadu_si512(angles + token * head_dim + channel);
      const __m512i sin = _mm512_loadu_si512(angles + token * head_dim + half + channel);
      first[token] = _mm512_sub_epi16(_mm512_mulhrs_epi16(a, cos), _mm512_mulhrs_epi16(b, sin));
      second[token] = _mm512_add_epi16(_mm512_mulhrs_epi16(b, cos), _mm512_mulhrs_epi16(a, sin));
    }
    for (std::int64_t q = 0; q < kQuad; ++q) {
      const std::int16_t* from = query + q * head_dim + 2 * channel;
      const __m512i q0 = _mm512_loadu_si512(from), q1 = _mm512_loadu_si512(from + kRun);
      if (q < kTokens) {
        fetch_line<Row>(lines, kTokens + q);
      }
      for (int token = 0; token < kTokens; ++token) {
        sums[token][q] = add_products<kVnni>(sums[token][q], q0, first[token]);
        sums[token][q] = add_products<kVnni>(sums[token][q], q1, second[token]);
      }
    }
  }
  if constexpr (kTokens == 4) {
    const __m512 sum = _mm512_cvtepi32_ps(sum_lanes(sums));
    _mm512_storeu_ps(scores, _mm512_mul_ps(sum, units.raw));
  } else {
    static_assert(kTokens == 1);
    Vec sum[kQuad];
    for (std::int64_t q = 0; q < kQuad; ++q) {
      sum[q] = Vec{_mm512_cvtepi32_ps(sums[0][q])};
    }
    const hn::CappedTag<float, 4> d4;
    store_sums(Wide(), sum[0], sum[1], sum[2], sum[3], scores);
    hn::StoreU(hn::Mul(hn::LoadU(d4, scores), hn::LowerHalf(hn::LowerHalf(units))), d4, scores);
  }
}

// scores: [count, kQuad] of rows of one group. angles: [count, 2, head_dim / 2].
template <class Row, bool kVnni>
void int16_score_tile(const std::uint8_t* codes, std::int64_t stride, std::int64_t head_dim,
                      const std::int16_t* angles, const std::int16_t* scales,
                      const std::int16_t* query, const Vec& units, std::int64_t count,
                      float* scores, ReadAhead& ahead) {
  std::int64_t row = 0;
  for (; row + 4 <= count; row += 4) {
    int16_score_rows<Row, kVnni, 4>(codes + row * stride, stride, head_dim, angles + row * head_dim,
                                    scales, query, units, scores + row * kQuad, ahead);
  }
  for (; row < count; ++row) {
    int16_score_rows<Row, kVnni, 1>(codes + row * stride, stride, head_dim, angles + row * head_dim,
                                    scales, query, units, scores + row * kQuad, ahead);
  }
}

#endif  // KVC_HAS_INT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

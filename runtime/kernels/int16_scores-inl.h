// Scores of keys whose codes stay integers.
#if defined(KVC_RUNTIME_KERNELS_INT16_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_INT16_SCORES_INL_H_
#undef KVC_RUNTIME_KERNELS_INT16_SCORES_INL_H_
#else
#define KVC_RUNTIME_KERNELS_INT16_SCORES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/kernels/int16_dot-inl.h"
#include "runtime/kernels/quad_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_INT16_DOT

// Queries of all quads as 16-bit numbers, runs of first halves and of second halves in turn.
class Int16Queries {
 public:
  Int16Queries() = default;
  // queries: [quads, kQuad, head_dim] in order.
  Int16Queries(const float* queries, std::int64_t quads, std::int64_t head_dim)
      : head_dim_(head_dim),
        numbers_(static_cast<std::size_t>(quads * kQuad * head_dim)),
        units_(static_cast<std::size_t>(quads * kQuad)) {
    // head_dim / 16 products of keys up to 2^14 are summed in a lane.
    const float most = std::min(32000.0f, 16000.0f * 128 / static_cast<float>(head_dim));
    std::vector<float> ordered(static_cast<std::size_t>(head_dim));
    for (std::int64_t row = 0; row < quads * kQuad; ++row, queries += head_dim) {
      float largest = 0;
      for (std::int64_t i = 0; i < head_dim; ++i) {
        largest = std::max(largest, std::fabs(queries[i]));
      }
      float* to = ordered.data();
      for (std::int64_t i = 0; i < head_dim / 2; i += kRun) {
        to = std::copy_n(queries + i, kRun, to);
        to = std::copy_n(queries + head_dim / 2 + i, kRun, to);
      }
      scale_to_int16(ordered.data(), largest == 0 ? 0 : most / largest, head_dim,
                     numbers_.data() + row * head_dim);
      units_[static_cast<std::size_t>(row)] = largest / most;
    }
  }
  const std::int16_t* operator[](std::int64_t quad) const {
    return numbers_.data() + quad * kQuad * head_dim_;
  }
  const float* units(std::int64_t quad) const { return units_.data() + quad * kQuad; }

 private:
  std::int64_t head_dim_ = 0;
  std::vector<std::int16_t> numbers_;  // [quads, kQuad, head_dim]
  std::vector<float> units_;           // [quads, kQuad] what a 1 stands for
};

// A tile's angles as 16-bit numbers: 2^15 is the factor that multiplies all of them.
inline void narrow_angles(const float* angles, std::int64_t count, float factor, std::int16_t* to) {
  scale_to_int16(angles, 32767 / factor, count, to);
}

// Keys of one head and one group of rows: code * scale + minimum in fixed point.
struct Int16Scales {
  std::int16_t* numbers;  // [2, head_dim] scales and minima
  float unit;             // what a 1 of a key stands for
};
template <class Row>
Int16Scales narrow_scales(const float* scale, const float* minimum, std::int64_t head_dim,
                          std::int16_t* to) {
  constexpr float kLevels = (1 << Row::kBits) - 1;
  const __m512 levels = _mm512_set1_ps(kLevels);
  __m512 largest = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < head_dim; i += 16) {
    const __m512 low = _mm512_loadu_ps(minimum + i);
    const __m512 high = _mm512_fmadd_ps(levels, _mm512_loadu_ps(scale + i), low);
    largest = _mm512_max_ps(largest, _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
  }
  // A turned pair is at most sqrt(2) times as large.
  const float most = 1.41422f * _mm512_reduce_max_ps(largest);
  const float factor = most == 0 ? 0 : 16380 / most;
  scale_to_int16(scale, factor * (kLevels + 1), head_dim, to);
  scale_to_int16(minimum, factor, head_dim, to + head_dim);
  return {to, most / 16380};
}

// Scores of kTokens rows, 1 or 4.
template <class Row, bool kVnni, int kTokens>
HWY_INLINE void int16_score_rows(const std::uint8_t* codes, std::int64_t stride,
                                 std::int64_t head_dim, const std::int16_t* angles,
                                 const std::int16_t* scales, const std::int16_t* query,
                                 const Vec& units, float* scores) {
  constexpr int kShift = 15 - Row::kBits;  // times (levels + 1) scale, over 2^15
  const std::int64_t half = head_dim / 2;
  __m512i sums[kTokens][kQuad];
  for (auto& of_token : sums) {
    for (__m512i& sum : of_token) {
      sum = _mm512_setzero_si512();
    }
  }
  for (std::int64_t channel = 0; channel < half; channel += kRun) {
    const auto key = [&](const std::uint8_t* row, std::int64_t at) {
      return _mm512_add_epi16(_mm512_mulhrs_epi16(_mm512_slli_epi16(load_run<Row>(row, at), kShift),
                                                  _mm512_loadu_si512(scales + at)),
                              _mm512_loadu_si512(scales + head_dim + at));
    };
    __m512i first[kTokens], second[kTokens];
    for (int token = 0; token < kTokens; ++token) {
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
                      const std::int16_t* angles, float factor, const Int16Scales& scales,
                      const std::int16_t* query, const float* query_units, std::int64_t count,
                      float* scores, ReadAhead& ahead) {
  const Vec units = hn::Mul(hn::LoadDup128(Wide(), query_units),
                            hn::Set(Wide(), scales.unit * factor * (32768.0f / 32767)));
  std::int64_t row = 0;
  for (; row + 4 <= count; row += 4) {
    ahead.fetch(kAhead * 4 * head_dim * Row::kBits / 8);
    int16_score_rows<Row, kVnni, 4>(codes + row * stride, stride, head_dim, angles + row * head_dim,
                                    scales.numbers, query, units, scores + row * kQuad);
  }
  for (; row < count; ++row) {
    int16_score_rows<Row, kVnni, 1>(codes + row * stride, stride, head_dim, angles + row * head_dim,
                                    scales.numbers, query, units, scores + row * kQuad);
  }
}

#endif  // KVC_HAS_INT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

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

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/int16_dot-inl.h"
#include "runtime/kernels/int16_queries-inl.h"
#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/unpack_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_INT16_DOT

// Keys of one head and one group of rows: (code << 16 - bits) * scale / 2^16 + minimum in fixed point.
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
  scale_to_int16(scale, factor * (kLevels + 1), 0, head_dim, to);
  scale_to_int16(minimum, factor, 0.5f, head_dim, to + head_dim);  // products are rounded down
  return {to, most / 16380};
}

// Those of all heads of a tile's groups of rows.
class Int16TileScales {
 public:
  Int16TileScales() = default;
  Int16TileScales(std::int64_t num_heads, std::int64_t head_dim)
      : num_heads_(num_heads), head_dim_(head_dim) {}

  // Of a tile of `count` rows, the first of which is row `in_group` of its group.
  template <class Row>
  void set(const TileScales& scales, std::int64_t count, std::int64_t in_group) {
    const std::int64_t groups = (in_group + count + kQuantisedRows - 1) / kQuantisedRows;
    in_group_ = in_group;
    numbers_.resize(static_cast<std::size_t>(groups * num_heads_ * 2 * head_dim_));
    scales_.resize(static_cast<std::size_t>(groups * num_heads_));
    for (std::int64_t i = 0; i < groups * num_heads_; ++i) {
      const std::int64_t line =
          std::max<std::int64_t>(0, i / num_heads_ * kQuantisedRows - in_group);
      const float* scale = scales.row(line) + i % num_heads_ * head_dim_;
      scales_[static_cast<std::size_t>(i)] = narrow_scales<Row>(
          scale, scale + num_heads_ * head_dim_, head_dim_, numbers_.data() + i * 2 * head_dim_);
    }
  }
  const Int16Scales& of(std::int64_t line, std::int64_t head) const {
    const std::int64_t group = (in_group_ + line) / kQuantisedRows;
    return scales_[static_cast<std::size_t>(group * num_heads_ + head)];
  }

 private:
  std::int64_t num_heads_ = 0, head_dim_ = 0, in_group_ = 0;
  AlignedVector<std::int16_t> numbers_;  // [groups, num_heads, 2, head_dim]
  std::vector<Int16Scales> scales_;      // [groups, num_heads]
};

// Scores of kTokens rows, 1 or 4.
template <class Row, bool kVnni, int kTokens>
HWY_INLINE void int16_score_rows(const std::uint8_t* codes, std::int64_t stride,
                                 std::int64_t head_dim, const std::int16_t* angles,
                                 const std::int16_t* scales, const std::int16_t* query,
                                 const Vec& units, float* scores) {
  const std::int64_t half = head_dim / 2;
  __m512i sums[kTokens][kQuad];
  for (auto& of_token : sums) {
    for (__m512i& sum : of_token) {
      sum = _mm512_setzero_si512();
    }
  }
  for (std::int64_t channel = 0; channel < half; channel += kRun) {
    const auto key = [&](const std::uint8_t* row, std::int64_t at) {
      return _mm512_add_epi16(
          _mm512_mulhi_epu16(load_high_run<Row, kVnni>(row, at), _mm512_loadu_si512(scales + at)),
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
    ahead.fetch(bytes_ahead<Row>(4 * head_dim));
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

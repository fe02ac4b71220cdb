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
#include "runtime/kernels/raw_keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_INT16_DOT

// Queries of all quads as 16-bit numbers, runs of first halves and of second halves in turn.
class Int16Queries {
 public:
  Int16Queries() = default;
  // queries: [quads, kQuad, head_dim] in order; are kept, not copied.
  Int16Queries(const float* queries, std::int64_t quads, std::int64_t head_dim)
      : queries_(queries),
        head_dim_(head_dim),
        numbers_(static_cast<std::size_t>(quads * kQuad * head_dim)),
        units_(static_cast<std::size_t>(quads * kQuad)) {
    // head_dim / 16 products of keys up to 2^14 are summed in a lane.
    const float most = std::min(32000.0f, 16000.0f * 128 / static_cast<float>(head_dim));
    const std::int64_t half = head_dim / 2;
    for (float& unit : units_) {
      float largest = 0;  // of what a pair may become as it turns
      for (std::int64_t i = 0; i < half; ++i) {
        largest = std::max(largest, std::hypot(queries[i], queries[i + half]));
      }
      unit = largest / most;
      queries += head_dim;
    }
  }
  // Turned back by minus the angles [head_dim / 2], all of which `factor` multiplies.
  void turn(const float* cos, const float* sin, float factor) {
    const std::int64_t half = head_dim_ / 2;
    const __m512 inverse = _mm512_set1_ps(1 / factor);
    const float* from = queries_;
    std::int16_t* to = numbers_.data();
    for (const float unit : units_) {
      const __m512 scale = _mm512_mul_ps(inverse, _mm512_set1_ps(unit == 0 ? 0 : 1 / unit));
      for (std::int64_t i = 0; i < half; i += kRun, to += 2 * kRun) {
        __m512 first[2], second[2];
        for (int part = 0; part < 2; ++part) {
          const std::int64_t at = i + 16 * part;
          const __m512 a = _mm512_loadu_ps(from + at), b = _mm512_loadu_ps(from + at + half);
          const __m512 c = _mm512_mul_ps(scale, _mm512_loadu_ps(cos + at));
          const __m512 s = _mm512_mul_ps(scale, _mm512_loadu_ps(sin + at));
          first[part] = _mm512_fmadd_ps(a, c, _mm512_mul_ps(b, s));
          second[part] = _mm512_fmsub_ps(b, c, _mm512_mul_ps(a, s));
        }
        _mm512_storeu_si512(to, to_int16(first[0], first[1]));
        _mm512_storeu_si512(to + kRun, to_int16(second[0], second[1]));
      }
      from += head_dim_;
    }
  }
  const std::int16_t* operator[](std::int64_t quad) const {
    return numbers_.data() + quad * kQuad * head_dim_;
  }
  const float* units(std::int64_t quad) const { return units_.data() + quad * kQuad; }

 private:
  const float* queries_ = nullptr;
  std::int64_t head_dim_ = 0;
  std::vector<std::int16_t> numbers_;  // [quads, kQuad, head_dim]
  std::vector<float> units_;           // [quads, kQuad] what a 1 stands for
};

// Angles of a tile's keys and queries: of neighbouring positions, keys turn by their distances to the first one,
// which are the same in every tile, and queries back by its angles; otherwise keys by all of theirs.
class Int16Angles {
 public:
  Int16Angles() = default;
  explicit Int16Angles(const RopeAngles& rope)
      : rope_(rope), numbers_(static_cast<std::size_t>(2 * kTileRows * rope.num_pairs)) {}

  void set(const KvSegment& segment, std::int64_t first, std::int64_t count,
           Int16Queries& queries) {
    const bool run = is_run(segment, first, count);
    const std::int64_t from = run ? position_of(segment, first) : 0;
    queries.turn(rope_.cos + from * rope_.num_pairs, rope_.sin + from * rope_.num_pairs, factor());
    num_distances_ = run ? num_distances_ : 0;
    for (std::int64_t line = num_distances_; line < count; ++line) {
      const std::int64_t angle = run ? line : position_of(segment, first + line);
      narrow(rope_.cos + angle * rope_.num_pairs, line, 0);
      narrow(rope_.sin + angle * rope_.num_pairs, line, rope_.num_pairs);
    }
    num_distances_ = run ? std::max(num_distances_, count) : 0;
  }
  // cos and then sin of the tile's row, [2, num_pairs]: 2^15 is a turn's 1.
  const std::int16_t* row(std::int64_t line) const {
    return numbers_.data() + 2 * line * rope_.num_pairs;
  }
  float factor() const { return rope_.cos[0]; }  // of all angles

 private:
  void narrow(const float* from, std::int64_t line, std::int64_t at) {
    scale_to_int16(from, 32767 / factor(), 0, rope_.num_pairs,
                   numbers_.data() + 2 * line * rope_.num_pairs + at);
  }

  RopeAngles rope_{};
  std::vector<std::int16_t> numbers_;  // [kTileRows, 2, num_pairs]
  std::int64_t num_distances_ = 0;     // rows that hold angles of distances
};

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

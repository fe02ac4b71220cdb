// Queries and angles as 16-bit numbers, for keys whose codes stay integers.
#if defined(KVC_RUNTIME_KERNELS_INT16_QUERIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_INT16_QUERIES_INL_H_
#undef KVC_RUNTIME_KERNELS_INT16_QUERIES_INL_H_
#else
#define KVC_RUNTIME_KERNELS_INT16_QUERIES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
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
  // Rotated back by the angles [head_dim / 2]; `factor` multiplies all cos and sin.
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
  AlignedVector<std::int16_t> numbers_;  // [quads, kQuad, head_dim]
  std::vector<float> units_;             // [quads, kQuad] what a 1 stands for
};

// Angles of a tile's keys and queries. At consecutive positions keys rotate by their distance to the first one,
// the same in every tile, and queries back by its angles; otherwise keys rotate by their own.
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
  // cos and then sin of the tile's row, [2, num_pairs], in units of 2^-15.
  const std::int16_t* row(std::int64_t line) const {
    return numbers_.data() + 2 * line * rope_.num_pairs;
  }
  float factor() const { return rope_.cos[0]; }  // of all angles

 private:
  void narrow(const float* from, std::int64_t line, std::int64_t at) {
    const __m512 scale = _mm512_set1_ps(32767 / factor());
    std::int16_t* to = numbers_.data() + 2 * line * rope_.num_pairs + at;
    for (std::int64_t i = 0; i < rope_.num_pairs; i += kRun) {
      const __m512 low = _mm512_loadu_ps(from + i), high = _mm512_loadu_ps(from + i + 16);
      _mm512_storeu_si512(to + i, to_int16(_mm512_mul_ps(scale, low), _mm512_mul_ps(scale, high)));
    }
  }

  RopeAngles rope_{};
  AlignedVector<std::int16_t> numbers_;  // [kTileRows, 2, num_pairs]
  std::int64_t num_distances_ = 0;       // rows that hold angles of distances
};

#endif  // KVC_HAS_INT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

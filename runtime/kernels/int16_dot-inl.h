// Codes that stay integers: dot products of 16-bit numbers with 32-bit sums (AVX-512), faster than
// float32. Keys, queries and weights are rounded to 14 bits or more of their tile's
// largest one, sums are exact.
#if defined(KVC_RUNTIME_KERNELS_INT16_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_INT16_DOT_INL_H_
#undef KVC_RUNTIME_KERNELS_INT16_DOT_INL_H_
#else
#define KVC_RUNTIME_KERNELS_INT16_DOT_INL_H_
#endif

#undef KVC_HAS_INT16_DOT

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/kernels/quad_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

#define KVC_HAS_INT16_DOT 1
inline constexpr std::int64_t kRun = 32;  // channels of a vector of 16-bit numbers, and of a scale

// sums + products of pairs of neighbouring 16-bit numbers
inline __m512i add_products(__m512i sums, __m512i a, __m512i b) {
  return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
}

// Codes of kRun channels as 16-bit numbers, in order.
template <class Row>
__m512i load_run(const std::uint8_t* row, std::int64_t channel) {
  if constexpr (Row::kBits == 8) {
    return _mm512_cvtepu8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + channel)));
  } else {
    const __m256i both =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + channel / 2)));
    const __m256i low = _mm256_and_si256(both, _mm256_set1_epi16(15));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_srli_epi16(both, 4), 1);
  }
}

// Sixteen floats of each, rounded, as 16-bit numbers in order.
inline __m512i to_int16(__m512 low, __m512 high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(low))),
                            _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(high)), 1);
}
inline void scale_to_int16(const float* from, float factor, std::int64_t count, std::int16_t* to) {
  const __m512 f = _mm512_set1_ps(factor);
  for (std::int64_t i = 0; i < count; i += kRun) {
    _mm512_storeu_si512(to + i, to_int16(_mm512_mul_ps(f, _mm512_loadu_ps(from + i)),
                                         _mm512_mul_ps(f, _mm512_loadu_ps(from + i + 16))));
  }
}

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
  constexpr float kLevels = Row::kBits == 8 ? 255 : 15;
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

// kTokens rows' scores before units. sums: [kTokens][kQuad].
template <class Row, int kTokens>
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
        sums[token][q] = add_products(sums[token][q], q0, first[token]);
        sums[token][q] = add_products(sums[token][q], q1, second[token]);
      }
    }
  }
  const hn::CappedTag<float, 4> d4;
  for (int token = 0; token < kTokens; ++token) {
    Vec sum[kQuad];
    for (std::int64_t q = 0; q < kQuad; ++q) {
      sum[q] = Vec{_mm512_cvtepi32_ps(sums[token][q])};
    }
    float* to = scores + token * kQuad;
    store_sums(Wide(), sum[0], sum[1], sum[2], sum[3], to);
    hn::StoreU(hn::Mul(hn::LoadU(d4, to), hn::LowerHalf(hn::LowerHalf(units))), d4, to);
  }
}

// scores: [count, kQuad] of rows of one group. angles: [count, 2, head_dim / 2].
template <class Row>
void int16_score_tile(const std::uint8_t* codes, std::int64_t stride, std::int64_t head_dim,
                      const std::int16_t* angles, float factor, const Int16Scales& scales,
                      const std::int16_t* query, const float* query_units, std::int64_t count,
                      float* scores, ReadAhead& ahead) {
  const Vec units = hn::Mul(hn::LoadDup128(Wide(), query_units),
                            hn::Set(Wide(), scales.unit * factor * (32768.0f / 32767)));
  std::int64_t row = 0;
  for (; row + 4 <= count; row += 4) {
    ahead.fetch(4 * head_dim * Row::kBits / 8);
    int16_score_rows<Row, 4>(codes + row * stride, stride, head_dim, angles + row * head_dim,
                             scales.numbers, query, units, scores + row * kQuad);
  }
  for (; row < count; ++row) {
    int16_score_rows<Row, 1>(codes + row * stride, stride, head_dim, angles + row * head_dim,
                             scales.numbers, query, units, scores + row * kQuad);
  }
}

// Weights times scales of four groups of channels, [group][query] in a vector, pairs of rows.
struct Int16Weights {
  std::vector<float> products = std::vector<float>(kTileRows * 16);
  std::vector<std::int32_t> pairs = std::vector<std::int32_t>(kTileRows / 2 * 16);
  alignas(64) float units[16];
  alignas(64) float minima[16];  // sums of weight * minimum

  // scales: {scale, minimum} of `groups` (at most 4) groups of the tile's rows.
  void set(const float* weights, const float* scales, std::int64_t stride, std::int64_t groups,
           std::int64_t count) {
    const __m512i of_scale = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i of_minimum = _mm512_add_epi32(of_scale, _mm512_set1_epi32(1));
    const auto mask = static_cast<__mmask16>((1 << 2 * groups) - 1);
    __m512 largest = _mm512_setzero_ps(), minimum = _mm512_setzero_ps();
    for (std::int64_t row = 0; row < count; ++row) {
      const __m512 weight = _mm512_broadcast_f32x4(_mm_loadu_ps(weights + row * kQuad));
      const __m512 both = _mm512_maskz_loadu_ps(mask, scales + row * stride);
      const __m512 product = _mm512_mul_ps(weight, _mm512_permutexvar_ps(of_scale, both));
      minimum = _mm512_fmadd_ps(weight, _mm512_permutexvar_ps(of_minimum, both), minimum);
      largest = _mm512_max_ps(largest, product);
      _mm512_storeu_ps(products.data() + row * 16, product);
    }
    if (count % 2 != 0) {
      _mm512_storeu_ps(products.data() + count * 16, _mm512_setzero_ps());
    }
    const __m512 most = _mm512_set1_ps(32767);
    _mm512_store_ps(units, _mm512_div_ps(largest, most));
    _mm512_store_ps(minima, minimum);
    const __m512 factor = _mm512_maskz_div_ps(
        _mm512_cmp_ps_mask(largest, _mm512_set1_ps(1e-30f), _CMP_GT_OQ), most, largest);
    for (std::int64_t row = 0; row < count; row += 2) {
      const float* from = products.data() + row * 16;
      const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(factor, _mm512_loadu_ps(from)));
      const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(factor, _mm512_loadu_ps(from + 16)));
      _mm512_storeu_si512(pairs.data() + row * 8, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
    }
  }
};

// kGroups groups of kRun channels; group of the first one among the four of `weights`.
template <class Row, int kGroups>
HWY_INLINE void int16_accumulate_groups(const std::uint8_t* codes, std::int64_t stride,
                                        std::int64_t count, const Int16Weights& weights,
                                        std::int64_t group, std::int64_t width, float* output,
                                        ReadAhead& ahead) {
  __m512i sums[kGroups][kQuad][2];
  for (auto& of_group : sums) {
    for (auto& of_query : of_group) {
      of_query[0] = of_query[1] = _mm512_setzero_si512();
    }
  }
  for (std::int64_t row = 0; row < count; row += 2) {
    ahead.fetch(2 * kGroups * kRun * Row::kBits / 8);
    const std::uint8_t* one = codes + row * stride;
    const std::uint8_t* two = row + 1 < count ? one + stride : one;
    for (int i = 0; i < kGroups; ++i) {
      const __m512i a = load_run<Row>(one, i * kRun), b = load_run<Row>(two, i * kRun);
      const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
      for (std::int64_t q = 0; q < kQuad; ++q) {
        const __m512i weight = _mm512_set1_epi32(
            weights.pairs[static_cast<std::size_t>(row * 8 + (group + i) * kQuad + q)]);
        sums[i][q][0] = add_products(sums[i][q][0], low, weight);
        sums[i][q][1] = add_products(sums[i][q][1], high, weight);
      }
    }
  }
  for (int i = 0; i < kGroups; ++i) {
    for (std::int64_t q = 0; q < kQuad; ++q) {
      const __m512 unit = _mm512_set1_ps(weights.units[(group + i) * kQuad + q]);
      const __m512 minimum = _mm512_set1_ps(weights.minima[(group + i) * kQuad + q]);
      for (int part = 0; part < 2; ++part) {
        float* to = output + q * width + i * kRun + part * 16;
        const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i][q][part]), unit, minimum);
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum));
      }
    }
  }
}

// output[q] += weights[row][q] * value[row] in order_of_pairs. scales: of the head, {scale, minimum}.
template <class Row>
void int16_accumulate_tile(const std::uint8_t* codes, std::int64_t stride, const float* scales,
                           std::int64_t scales_stride, std::int64_t width, std::int64_t count,
                           const float* weights, Int16Weights& scaled, float* output,
                           ReadAhead& ahead) {
  const std::int64_t groups = width / kRun;
  for (std::int64_t first = 0; first < groups; first += 4) {
    const std::int64_t some = std::min<std::int64_t>(4, groups - first);
    scaled.set(weights, scales + 2 * first, scales_stride, some, count);
    std::int64_t group = 0;
    for (; group + 2 <= some; group += 2) {
      const std::int64_t channel = (first + group) * kRun;
      int16_accumulate_groups<Row, 2>(codes + channel * Row::kBits / 8, stride, count, scaled,
                                      group, width, output + channel, ahead);
    }
    if (group < some) {
      const std::int64_t channel = (first + group) * kRun;
      int16_accumulate_groups<Row, 1>(codes + channel * Row::kBits / 8, stride, count, scaled,
                                      group, width, output + channel, ahead);
    }
  }
}

// Where pairs of rows leave the channels: of every eight, four in the first vector of a run.
inline ChannelOrder order_of_pairs(std::int64_t head_dim) {
  ChannelOrder order;
  for (std::int64_t channel = 0; channel < head_dim; ++channel) {
    const std::int64_t in_run = channel % kRun;
    order.push_back(static_cast<std::int32_t>(channel - in_run + in_run % 8 / 4 * 16 +
                                              in_run / 8 * 4 + in_run % 4));
  }
  return order;
}

#else
#define KVC_HAS_INT16_DOT 0
#endif  // HWY_TARGET
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Sums of values as integer codes.
#if defined(KVC_RUNTIME_KERNELS_INT16_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_INT16_SUMS_INL_H_
#undef KVC_RUNTIME_KERNELS_INT16_SUMS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_INT16_SUMS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "runtime/kernels/int16_dot-inl.h"
#include "runtime/kernels/quad_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_INT16_DOT

// Weights times scales of four groups of channels, [group][query] in a vector, pairs of rows.
struct Int16Weights {
  alignas(64) float products[kTileRows * 16];
  alignas(64) std::int32_t pairs[kTileRows / 2 * 16];
  alignas(64) float units[16];
  alignas(64) float minima[16];  // sums of weight * minimum

  // scales: {scale, minimum} in float16 of `groups` (at most 4) groups of the tile's rows, `stride` bytes apart.
  void set(const float* weights, const std::uint8_t* scales, std::int64_t stride,
           std::int64_t groups, std::int64_t count, ReadAhead& ahead) {
    const char* line = ahead.lines(count / 2);
    const __m512i of_scale = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i of_minimum = _mm512_add_epi32(of_scale, _mm512_set1_epi32(1));
    const auto mask = static_cast<__mmask8>((1 << groups) - 1);
    __m512 largest[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    __m512 minimum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    const auto add = [&](std::int64_t row, int chain) {
      const __m512 weight = _mm512_broadcast_f32x4(_mm_loadu_ps(weights + row * kQuad));
      const __m512 both = _mm512_castps256_ps512(
          _mm256_cvtph_ps(_mm_maskz_loadu_epi32(mask, scales + row * stride)));
      const __m512 product = _mm512_mul_ps(weight, _mm512_permutexvar_ps(of_scale, both));
      minimum[chain] =
          _mm512_fmadd_ps(weight, _mm512_permutexvar_ps(of_minimum, both), minimum[chain]);
      largest[chain] = _mm512_max_ps(largest[chain], product);
      _mm512_storeu_ps(products + row * 16, product);
    };
    std::int64_t row = 0;
    for (; row + 2 <= count; row += 2) {
      _mm_prefetch(line, _MM_HINT_T1);
      line += ReadAhead::kLine;
      add(row, 0);
      add(row + 1, 1);
    }
    if (row < count) {
      add(row, 0);
      _mm512_storeu_ps(products + count * 16, _mm512_setzero_ps());
    }
    finish(_mm512_max_ps(largest[0], largest[1]), _mm512_add_ps(minimum[0], minimum[1]), count);
  }

 private:
  void finish(__m512 largest, __m512 minimum, std::int64_t count) {
    const __m512 most = _mm512_set1_ps(32767);
    _mm512_store_ps(units, _mm512_div_ps(largest, most));
    _mm512_store_ps(minima, minimum);
    const __m512 factor = _mm512_maskz_div_ps(
        _mm512_cmp_ps_mask(largest, _mm512_set1_ps(1e-30f), _CMP_GT_OQ), most, largest);
    for (std::int64_t row = 0; row < count; row += 2) {
      const float* from = products + row * 16;
      const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(factor, _mm512_loadu_ps(from)));
      const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(factor, _mm512_loadu_ps(from + 16)));
      _mm512_storeu_si512(pairs + row * 8, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
    }
  }
};

// kGroups groups of kRun channels; group of the first one among the four of `weights`.
template <class Row, bool kVnni, int kGroups>
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
  const char* lines = ahead.lines(count);
  const std::int32_t* pairs = weights.pairs + group * kQuad;
  for (std::int64_t row = 0; row < count; row += 2) {
    for (int i = 0; i < 2; ++i, lines += ReadAhead::kLine) {
      _mm_prefetch(lines, _MM_HINT_T1);
    }
    const std::uint8_t* one = codes + row * stride;
    const std::uint8_t* two = row + 1 < count ? one + stride : one;
    for (int i = 0; i < kGroups; ++i) {
      const __m512i a = load_run<Row>(one, i * kRun), b = load_run<Row>(two, i * kRun);
      const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
      for (std::int64_t q = 0; q < kQuad; ++q) {
        const __m512i weight = _mm512_set1_epi32(pairs[i * kQuad + q]);
        sums[i][q][0] = add_products<kVnni>(sums[i][q][0], low, weight);
        sums[i][q][1] = add_products<kVnni>(sums[i][q][1], high, weight);
      }
    }
    pairs += 16;
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

// output[q] += weights[row][q] * value[row] in order_of_pairs. Rows are `stride` bytes apart; scales: of the first
// one's head, {scale, minimum} in float16.
template <class Row, bool kVnni>
void int16_accumulate_tile(const std::uint8_t* codes, const std::uint8_t* scales,
                           std::int64_t stride, std::int64_t width, std::int64_t count,
                           const float* weights, Int16Weights& scaled, float* output,
                           ReadAhead& ahead) {
  const std::int64_t groups = width / kRun;
  for (std::int64_t first = 0; first < groups; first += 4) {
    const std::int64_t some = std::min<std::int64_t>(4, groups - first);
    scaled.set(weights, scales + 4 * first, stride, some, count, ahead);
    std::int64_t group = 0;
    for (; group + 2 <= some; group += 2) {
      const std::int64_t channel = (first + group) * kRun;
      int16_accumulate_groups<Row, kVnni, 2>(codes + channel * Row::kBits / 8, stride, count,
                                             scaled, group, width, output + channel, ahead);
    }
    if (group < some) {
      const std::int64_t channel = (first + group) * kRun;
      int16_accumulate_groups<Row, kVnni, 1>(codes + channel * Row::kBits / 8, stride, count,
                                             scaled, group, width, output + channel, ahead);
    }
  }
}

#endif  // KVC_HAS_INT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Running softmaxes over tiles of scores, in AVX-512 BF16. As bfloat16_tiles.h: between push and pop of
// attributes only.
#pragma once

#include "model/kernels/bfloat16_tiles.h"

#if KVC_HAS_BFLOAT16_TILES
#include <algorithm>
#include <cmath>
#include <cstdint>

KVC_BEFORE_BFLOAT16_TILES();
namespace kvc {

inline constexpr float kLog2E = 1.44269504088896341f;

// Keys first .. last - 1 of a tile.
struct KeyRange {
  std::int64_t first, last;
};

// 2^x, to 3e-6 of it.
inline __m512 exp2_of(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);
  __m512 sum = _mm512_set1_ps(1.3333558146e-3f);
  for (const float c :
       {9.6181291076e-3f, 5.5504108665e-2f, 2.4022650696e-1f, 6.9314718056e-1f, 1.0f}) {
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(c));
  }
  return _mm512_scalef_ps(sum, whole);
}

// Lanes of a vector from key `at` on that are in the range.
inline __mmask16 lanes_in(const KeyRange& range, std::int64_t at) {
  const auto below = [&](std::int64_t end) {
    const std::int64_t count = std::clamp<std::int64_t>(end - at, 0, kLanes);
    return (std::uint32_t{1} << count) - 1;
  };
  return static_cast<__mmask16>(below(range.last) & ~below(range.first));
}

// One query of one head: the largest score so far, times log2(e), and the sum of 2^(score - max).
struct RunningSoftmax {
  float max = -INFINITY, sum = 0;
};

// Scores x scale (capped) in units of log2(e).
struct ScoreRule {
  float scale, softcap;

  __m512 operator()(__m512 product) const {
    if (softcap == 0) {
      return _mm512_mul_ps(product, _mm512_set1_ps(scale * kLog2E));
    }
    constexpr float kLargest = 18 * kLog2E;  // of 2 x / softcap: tanh is 1 in float32
    __m512 x = _mm512_mul_ps(product, _mm512_set1_ps(2 * scale / softcap * kLog2E));
    x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(kLargest)), _mm512_set1_ps(-kLargest));
    const __m512 e = exp2_of(x), one = _mm512_set1_ps(1);
    return _mm512_mul_ps(_mm512_div_ps(_mm512_sub_ps(e, one), _mm512_add_ps(e, one)),
                         _mm512_set1_ps(softcap * kLog2E));
  }
};

// scores [columns] float32 to weights [columns] bfloat16, zero outside of `seen`. columns: a multiple of
// 2 * kLanes. Returns what earlier sums are to be multiplied by.
inline float exponentiate(const ScoreRule& rule, const KeyRange& seen, std::int64_t columns,
                          float* scores, RunningSoftmax& softmax, std::uint16_t* weights) {
  if (seen.first >= seen.last) {
    std::fill_n(weights, columns, std::uint16_t{0});
    return 1;
  }
  const __m512 least = _mm512_set1_ps(-INFINITY);
  __m512 largest = least;
  for (std::int64_t at = 0; at < columns; at += kLanes) {
    const __m512 score = rule(_mm512_loadu_ps(scores + at));
    largest = _mm512_mask_max_ps(largest, lanes_in(seen, at), largest, score);
    _mm512_storeu_ps(scores + at, score);
  }
  const float before = softmax.max;
  softmax.max = std::max(before, _mm512_reduce_max_ps(largest));
  const __m512 max = _mm512_set1_ps(softmax.max);
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t at = 0; at < columns; at += 2 * kLanes) {
    const auto weight = [&](std::int64_t from) {
      const __m512 x = _mm512_sub_ps(_mm512_loadu_ps(scores + from), max);
      return _mm512_maskz_mov_ps(lanes_in(seen, from), exp2_of(x));
    };
    const __m512 low = weight(at), high = weight(at + kLanes);
    sum = _mm512_add_ps(sum, _mm512_add_ps(low, high));
    _mm512_storeu_si512(weights + at, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
  const float factor = before == softmax.max ? 1 : std::exp2(before - softmax.max);
  softmax.sum = softmax.sum * factor + _mm512_reduce_add_ps(sum);
  return factor;
}

}  // namespace kvc
HWY_POP_ATTRIBUTES
#endif  // KVC_HAS_BFLOAT16_TILES

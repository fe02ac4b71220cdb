// Attention of a KV head's query heads over bfloat16 rows (AVX-512 BF16): one or two quads of heads are the lanes of
// a vector, and a key's channels go to all of them, so sums stay separate until the end.
#if defined(KVC_RUNTIME_KERNELS_BFLOAT16_QUADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_BFLOAT16_QUADS_INL_H_
#undef KVC_RUNTIME_KERNELS_BFLOAT16_QUADS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_BFLOAT16_QUADS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "runtime/kernels/bfloat16_dot-inl.h"
#include "runtime/kernels/exp-inl.h"
#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/tile_places-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_BFLOAT16_DOT

inline constexpr std::int64_t kRowsAtOnce = 8;

// Sums of neighbouring lanes of a, then of b.
HWY_INLINE __m512 add_neighbours(__m512 a, __m512 b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  return _mm512_add_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
}

// kQuads quads of heads of one KV head, 1 or 2.
template <int kQuads>
struct Bfloat16Quads {
  static constexpr std::int64_t kLanes = kQuads * kQuad;
  static constexpr std::int64_t kPairs = 16 / kLanes;  // of channels, for every head in a vector
  static constexpr std::int64_t kRowsOfVector = 16 / kLanes;

  // Query heads [kLanes, head_dim], and `parts` - 1 more of them `next_part` numbers later, become
  // [vectors, parts, kLanes, 2 kPairs].
  static void pack(const std::uint16_t* heads, std::int64_t head_dim, std::int64_t parts,
                   std::int64_t next_part, std::uint16_t* to) {
    for (std::int64_t channel = 0; channel < head_dim; channel += 2 * kPairs) {
      for (std::int64_t part = 0; part < parts; ++part) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane, to += 2 * kPairs) {
          std::copy_n(heads + part * next_part + lane * head_dim + channel, 2 * kPairs, to);
        }
      }
    }
  }

  static HWY_INLINE __m512i spread(const std::uint8_t* pairs) {
    const auto* from = reinterpret_cast<const __m128i*>(pairs);
    return kQuads == 1 ? _mm512_broadcast_i32x4(_mm_loadu_si128(from))
                       : _mm512_broadcastq_epi64(_mm_loadl_epi64(from));
  }

  // Scores of kRowsAtOnce rows from `line` on, with queries in kParts parts; prefetches as many bytes from `ahead`
  // on.
  template <int kParts>
  static HWY_INLINE void add_scores(const HeadPlaces& keys, const std::uint16_t* query,
                                    std::int64_t line, const std::uint8_t* ahead,
                                    __m512 (&sums)[kRowsAtOnce]) {
    const std::uint8_t* const* rows = keys.tile.rows + line;
    constexpr std::int64_t kStep = 4 * kPairs;
    for (std::int64_t byte = 0; byte < keys.bytes; byte += kStep, query += kParts * kRun) {
      __m512i of_query[kParts];
      for (int part = 0; part < kParts; ++part) {
        of_query[part] = _mm512_loadu_si512(query + part * kRun);
      }
      fetch_lines<kRowsAtOnce * kStep / 64>(ahead);
      ahead += kRowsAtOnce * kStep;
      for (std::int64_t row = 0; row < kRowsAtOnce; ++row) {
        const __m512i key = spread(rows[row] + keys.offset + byte);
        for (int part = 0; part < kParts; ++part) {
          sums[row] = add_bfloat16_products(sums[row], of_query[part], key);
        }
      }
    }
  }

  // scores: [kRowsAtOnce, kLanes]
  static HWY_INLINE void store_scores(const __m512 (&sums)[kRowsAtOnce], float scale,
                                      float* scores) {
    for (std::int64_t row = 0; row < kRowsAtOnce; row += kRowsOfVector, scores += 16) {
      __m512 of_rows = add_neighbours(sums[row], sums[row + 1]);
      if constexpr (kQuads == 1) {
        of_rows = add_neighbours(of_rows, add_neighbours(sums[row + 2], sums[row + 3]));
      }
      _mm512_storeu_ps(scores, _mm512_mul_ps(of_rows, _mm512_set1_ps(scale)));
    }
  }

  // Combines lanes that are kLanes, and twice as many, apart: all heads in every row of a vector.
  template <class Combine>
  static HWY_INLINE __m512 fold(__m512 x, const Combine& combine) {
    x = combine(x, _mm512_shuffle_f32x4(x, x, 0x4E));
    return kQuads == 1 ? combine(x, _mm512_shuffle_f32x4(x, x, 0xB1)) : x;
  }
  static HWY_INLINE __m512 load_heads(const float (&first)[kQuad], const float (&last)[kQuad]) {
    const __m256 both =
        _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(first)), _mm_loadu_ps(last), 1);
    return _mm512_broadcast_f32x8(both);
  }
  static HWY_INLINE void store_heads(__m512 x, float (&first)[kQuad], float (&last)[kQuad]) {
    _mm_storeu_ps(last, _mm512_extractf32x4_ps(x, kQuads - 1));
    _mm_storeu_ps(first, _mm512_castps512_ps128(x));
  }

  // exp(score - max) in bfloat16 as pairs of rows, [rows / 2, kLanes], of scores [rows, kLanes] of whole vectors;
  // `rescale` [kLanes] receives the factor of earlier sums.
  static void weigh(std::int64_t rows, const float* scores, QuadSoftmax* softmaxes,
                    std::int32_t* pairs, float* rescale) {
    QuadSoftmax &first = softmaxes[0], &last = softmaxes[kQuads - 1];
    const __m512 before = load_heads(first.max, last.max);
    __m512 largest = before;
    for (std::int64_t i = 0; i < rows * kLanes; i += 16) {
      largest = _mm512_max_ps(largest, _mm512_loadu_ps(scores + i));
    }
    largest = fold(largest, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
    const __m512 factor = exp_below_zero(_mm512_sub_ps(before, largest));
    const __m256i in_pairs =
        kQuads == 1 ? _mm256_setr_epi16(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)
                    : _mm256_setr_epi16(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    __m512 sums = _mm512_setzero_ps();
    for (std::int64_t i = 0; i < rows * kLanes; i += 16, pairs += 8) {
      const __m512 exact = exp_below_zero(_mm512_sub_ps(_mm512_loadu_ps(scores + i), largest));
      const __m256i rounded = _mm256_permutexvar_epi16(in_pairs, nearest_bfloat16(exact));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs), rounded);
      sums = add_bfloat16_products(sums, _mm512_castsi256_si512(rounded),
                                   _mm512_set1_epi16(0x3F80));  // ones
    }
    sums = _mm512_zextps256_ps512(_mm512_castps512_ps256(sums));
    sums = fold(sums, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
    sums = _mm512_fmadd_ps(load_heads(first.sum, last.sum), factor, sums);
    store_heads(sums, first.sum, last.sum);
    store_heads(largest, first.max, last.max);
    _mm256_storeu_ps(rescale, _mm512_castps512_ps256(factor));
  }

  // output[head] = rescale[head] * output[head] + weight * value, 16 kVectors channels in order_of_pairs.
  template <int kVectors>
  static HWY_INLINE void accumulate_vectors(const HeadPlaces& values, std::int64_t first,
                                            std::int64_t last, const std::int32_t* pairs,
                                            const float* rescale, const std::uint8_t* ahead,
                                            std::int64_t width, float* output) {
    __m512 sums[kLanes][kVectors];
    for (std::int64_t head = 0; head < kLanes; ++head) {
      for (int i = 0; i < kVectors; ++i) {
        sums[head][i] = _mm512_loadu_ps(output + head * width + 16 * i);
        if (rescale != nullptr) {
          sums[head][i] = _mm512_mul_ps(sums[head][i], _mm512_set1_ps(rescale[head]));
        }
      }
    }
    for (std::int64_t row = first; row < last; row += 2, pairs += kLanes) {
      const std::uint8_t* one = values.tile.rows[row] + values.offset;
      const std::uint8_t* other = values.tile.rows[row + 1] + values.offset;
      __m512i both[kVectors];
      for (int i = 0; i < kVectors; i += 2) {
        const __m512i a = _mm512_loadu_si512(one + 32 * i), b = _mm512_loadu_si512(other + 32 * i);
        both[i] = _mm512_unpacklo_epi16(a, b);
        both[i + 1] = _mm512_unpackhi_epi16(a, b);
      }
      for (std::int64_t head = 0; head < kLanes; ++head) {
        const __m512i weight = _mm512_set1_epi32(pairs[head]);
        if (head % (kLanes / kVectors) == 0) {
          fetch_lines<1>(ahead);
          ahead += 64;
        }
        for (int i = 0; i < kVectors; ++i) {
          sums[head][i] = add_bfloat16_products(sums[head][i], both[i], weight);
        }
      }
    }
    for (std::int64_t head = 0; head < kLanes; ++head) {
      for (int i = 0; i < kVectors; ++i) {
        _mm512_storeu_ps(output + head * width + 16 * i, sums[head][i]);
      }
    }
  }

  // The same for all channels. `first` and `last` are even. rescale: null: ones.
  static void accumulate(const HeadPlaces& values, std::int64_t first, std::int64_t last,
                         const std::int32_t* pairs, const float* rescale, const std::uint8_t* ahead,
                         float* output) {
    constexpr int kVectors = 16 / kLanes;  // sums take half the registers
    const std::int64_t width = values.bytes / 2;
    std::int64_t channel = 0;
    HeadPlaces from = values;
    for (; channel + 16 * kVectors <= width; channel += 16 * kVectors) {
      accumulate_vectors<kVectors>(from, first, last, pairs, rescale, ahead, width,
                                   output + channel);
      from.offset += 32 * kVectors;
      ahead += 32 * kVectors * (last - first);
    }
    if (kVectors > 2 && channel < width) {
      accumulate_vectors<2>(from, first, last, pairs, rescale, ahead, width, output + channel);
    }
  }
};

#endif  // KVC_HAS_BFLOAT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

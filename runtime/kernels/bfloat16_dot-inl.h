// Scores and sums of bfloat16 rows as dot products of bfloat16 pairs with float32 sums (AVX-512 BF16), two
// products where float32 does one.
#if defined(KVC_RUNTIME_KERNELS_BFLOAT16_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_BFLOAT16_DOT_INL_H_
#undef KVC_RUNTIME_KERNELS_BFLOAT16_DOT_INL_H_
#else
#define KVC_RUNTIME_KERNELS_BFLOAT16_DOT_INL_H_
#endif

#undef KVC_HAS_BFLOAT16_DOT

#include <hwy/highway.h>

#include <cstdint>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/sum_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

#define KVC_HAS_BFLOAT16_DOT 1

// sums + products of pairs of neighbouring bfloat16 numbers. In assembly, because no compiled target has
// it.
HWY_INLINE __m512 add_bfloat16_products(__m512 sums, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
  return sums;
}

HWY_INLINE __m256i nearest_bfloat16(__m512 x) {
  __m256i rounded;
  asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(x));
  return rounded;
}

// Queries as bfloat16 numbers, and their remainders as well: products of both with keys are exact. A bfloat16 model's
// queries have no remainder; others lose at most a 2^17th.
class Bfloat16Queries {
 public:
  // factors [num_kv_heads, head_dim] multiply the queries; null: ones. head_dim: a multiple of 16
  Bfloat16Queries(const DecodeAttentionParams& params, const float* factors)
      : width_(params.head_dim), size_(QuadHeads(params).count * kQuad * width_) {
    numbers_.resize(static_cast<std::size_t>(2 * size_));
    const QuadHeads heads(params);
    __m512i lost = _mm512_setzero_si512();
    for (std::int64_t row = 0; row < heads.count * kQuad; ++row) {
      const std::int64_t quad = row / kQuad, head = heads.head(quad, row % kQuad);
      if (head >= 0) {
        const float* factor = factors == nullptr ? nullptr : factors + heads.kv_head(quad) * width_;
        const __m512i of_row =
            split(params.query + head * width_, factor, numbers_.data() + row * width_);
        lost = _mm512_or_si512(lost, of_row);
      }
    }
    are_exact_ = _mm512_test_epi32_mask(lost, lost) == 0;
  }
  // Without remainders.
  bool are_exact() const { return are_exact_; }
  const std::uint16_t* operator[](std::int64_t quad) const {
    return numbers_.data() + quad * kQuad * width_;
  }
  const std::uint16_t* rest(std::int64_t quad) const { return (*this)[quad] + size_; }

 private:
  // Returns the bits of the remainders.
  __m512i split(const float* from, const float* factor, std::uint16_t* to) const {
    const __m512i low = _mm512_set1_epi32(0xFFFF);
    const auto store = [](std::uint16_t* place, __m256i numbers) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), numbers);
    };
    __m512i lost = _mm512_setzero_si512();
    for (std::int64_t i = 0; i < width_; i += 16) {
      const __m512 query = _mm512_loadu_ps(from + i);
      const __m512 x =
          factor == nullptr ? query : _mm512_mul_ps(query, _mm512_loadu_ps(factor + i));
      const __m256i number = nearest_bfloat16(x);
      const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(number), 16);
      lost = _mm512_or_si512(lost, _mm512_and_si512(low, _mm512_castps_si512(x)));
      store(to + i, number);
      store(to + size_ + i, nearest_bfloat16(_mm512_sub_ps(x, _mm512_castsi512_ps(wide))));
    }
    return lost;
  }

  std::int64_t width_, size_;
  bool are_exact_ = true;
  AlignedVector<std::uint16_t> numbers_;  // [2, quads, kQuad, head_dim]: numbers, then rests
};

// Scores of kTokens rows, 1 or 4. scores: [kTokens, kQuad].
template <int kTokens>
HWY_INLINE void bfloat16_score_rows(const std::uint8_t* keys, std::int64_t stride,
                                    std::int64_t width, const std::uint16_t* query, float scale,
                                    float* scores) {
  __m512 sums[kTokens][kQuad];
  for (auto& of_token : sums) {
    for (__m512& sum : of_token) {
      sum = _mm512_setzero_ps();
    }
  }
  for (std::int64_t channel = 0; channel < width; channel += kRun) {
    __m512i key[kTokens];
    for (int token = 0; token < kTokens; ++token) {
      key[token] = _mm512_loadu_si512(keys + token * stride + 2 * channel);
    }
    for (std::int64_t q = 0; q < kQuad; ++q) {
      const __m512i of_query = _mm512_loadu_si512(query + q * width + channel);
      for (int token = 0; token < kTokens; ++token) {
        sums[token][q] = add_bfloat16_products(sums[token][q], of_query, key[token]);
      }
    }
  }
  if constexpr (kTokens == 4) {
    _mm512_storeu_ps(scores, _mm512_mul_ps(_mm512_set1_ps(scale), sum_lanes(sums)));
  } else {
    static_assert(kTokens == 1);
    const hn::CappedTag<float, 4> d4;
    store_sums(Wide(), Vec{sums[0][0]}, Vec{sums[0][1]}, Vec{sums[0][2]}, Vec{sums[0][3]}, scores);
    hn::StoreU(hn::Mul(hn::LoadU(d4, scores), hn::Set(d4, scale)), d4, scores);
  }
}

// scores: [count, kQuad]; `width` channels, a whole number of runs.
inline void bfloat16_score_tile(const std::uint8_t* keys, std::int64_t stride, std::int64_t width,
                                const std::uint16_t* query, float scale, std::int64_t count,
                                float* scores, ReadAhead& ahead) {
  std::int64_t row = 0;
  for (; row + 4 <= count; row += 4) {
    ahead.fetch(4 * 2 * width);
    bfloat16_score_rows<4>(keys + row * stride, stride, width, query, scale, scores + row * kQuad);
  }
  for (; row < count; ++row) {
    bfloat16_score_rows<1>(keys + row * stride, stride, width, query, scale, scores + row * kQuad);
  }
}

// A tile's weights [count, kQuad], bfloat16 numbers as float32, in pairs of rows. Padded with zeros to a
// multiple of four rows.
struct Bfloat16Weights {
  alignas(64) std::int32_t pairs[kTileRows / 2 * kQuad];

  void set(const float* weights, std::int64_t count) {
    for (std::int64_t row = 0; row < count; row += 4) {
      const __m512i four = _mm512_loadu_si512(weights + row * kQuad);
      const __m512i even = _mm512_srli_epi32(_mm512_shuffle_i32x4(four, four, 0x88), 16);
      const __m512i both = _mm512_or_si512(even, _mm512_shuffle_i32x4(four, four, 0xDD));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + row / 2 * kQuad),
                          _mm512_castsi512_si256(both));
    }
  }
};

// output[q] += weights[row][q] * value[row], kRuns runs of channels in order_of_pairs.
template <int kRuns>
HWY_INLINE void bfloat16_accumulate_runs(const std::uint8_t* values, std::int64_t stride,
                                         std::int64_t count, const Bfloat16Weights& weights,
                                         std::int64_t width, float* output, ReadAhead& ahead) {
  __m512 sums[kQuad][2 * kRuns];
  for (std::int64_t q = 0; q < kQuad; ++q) {
    for (int i = 0; i < 2 * kRuns; ++i) {
      sums[q][i] = _mm512_loadu_ps(output + q * width + 16 * i);
    }
  }
  for (std::int64_t row = 0; row < count; row += 2) {
    ahead.fetch(2 * kRuns * 2 * kRun);
    const std::uint8_t* one = values + row * stride;
    __m512i both[2 * kRuns];
    for (int run = 0; run < kRuns; ++run) {
      const __m512i a = _mm512_loadu_si512(one + 2 * run * kRun);
      const __m512i b = row + 1 < count ? _mm512_loadu_si512(one + stride + 2 * run * kRun)
                                        : _mm512_setzero_si512();
      both[2 * run] = _mm512_unpacklo_epi16(a, b);
      both[2 * run + 1] = _mm512_unpackhi_epi16(a, b);
    }
    for (std::int64_t q = 0; q < kQuad; ++q) {
      const __m512i weight = _mm512_set1_epi32(weights.pairs[row / 2 * kQuad + q]);
      for (int i = 0; i < 2 * kRuns; ++i) {
        sums[q][i] = add_bfloat16_products(sums[q][i], both[i], weight);
      }
    }
  }
  for (std::int64_t q = 0; q < kQuad; ++q) {
    for (int i = 0; i < 2 * kRuns; ++i) {
      _mm512_storeu_ps(output + q * width + 16 * i, sums[q][i]);
    }
  }
}

// The same for the first `channels` of `width`, a whole number of runs.
inline void bfloat16_accumulate_tile(const std::uint8_t* values, std::int64_t stride,
                                     std::int64_t channels, std::int64_t width, std::int64_t count,
                                     const Bfloat16Weights& weights, float* output,
                                     ReadAhead& ahead) {
  std::int64_t channel = 0;
  for (; channel + 2 * kRun <= channels; channel += 2 * kRun) {
    bfloat16_accumulate_runs<2>(values + 2 * channel, stride, count, weights, width,
                                output + channel, ahead);
  }
  if (channel < channels) {
    bfloat16_accumulate_runs<1>(values + 2 * channel, stride, count, weights, width,
                                output + channel, ahead);
  }
}

#else
#define KVC_HAS_BFLOAT16_DOT 0
#endif  // HWY_TARGET
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

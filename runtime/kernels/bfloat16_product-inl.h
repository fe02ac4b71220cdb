// Words of matrix products (float_product-inl.h) that are two bfloat16 numbers each (AVX-512 BF16): products of pairs of
// neighbouring numbers are exact, and both go to one sum.
#if defined(KVC_RUNTIME_KERNELS_BFLOAT16_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_BFLOAT16_PRODUCT_INL_H_
#undef KVC_RUNTIME_KERNELS_BFLOAT16_PRODUCT_INL_H_
#else
#define KVC_RUNTIME_KERNELS_BFLOAT16_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "runtime/kernels/bfloat16_dot-inl.h"
#include "runtime/kernels/float_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_BFLOAT16_DOT

struct Bfloat16Words {
  using Word = std::uint32_t;
  static constexpr std::int64_t kNumbers = 2;
  static HWY_INLINE __m512i load(const std::uint32_t* words) { return _mm512_loadu_si512(words); }
  static HWY_INLINE __m512i spread(std::uint32_t word) {
    return _mm512_set1_epi32(static_cast<int>(word));
  }
  static HWY_INLINE NumberVec add(__m512i a, __m512i b, NumberVec sums) {
    return NumberVec{add_bfloat16_products(sums.raw, a, b)};
  }
};

// The nearest bfloat16 numbers of as many numbers, a multiple of 32.
inline void round_numbers(const float* numbers, std::int64_t count, std::uint32_t* words) {
  for (std::int64_t i = 0; i < count; i += 32) {
    const __m256i low = nearest_bfloat16(_mm512_loadu_ps(numbers + i));
    const __m256i high = nearest_bfloat16(_mm512_loadu_ps(numbers + i + 16));
    _mm512_storeu_si512(words + i / 2, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }
}

#endif  // KVC_HAS_BFLOAT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVC_RUNTIME_KERNELS_BFLOAT16_PRODUCT_INL_H_

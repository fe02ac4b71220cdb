// Sums over lanes (AVX-512).
#if defined(KVC_RUNTIME_KERNELS_SUM_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_SUM_LANES_INL_H_
#undef KVC_RUNTIME_KERNELS_SUM_LANES_INL_H_
#else
#define KVC_RUNTIME_KERNELS_SUM_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

// Sums over the lanes of sixteen vectors of float32 or int32 numbers, four by four.
template <class V>
HWY_INLINE V sum_lanes(const V (&sums)[4][4]) {
  const auto bits = [](V v) { return reinterpret_cast<__m512i>(v); };
  const auto add = [](__m512i a, __m512i b) {
    if constexpr (std::is_same_v<V, __m512>) {
      return reinterpret_cast<__m512i>(
          _mm512_add_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
    } else {
      return _mm512_add_epi32(a, b);
    }
  };
  const auto halves = [&](V a, V b) {
    return add(_mm512_unpacklo_epi32(bits(a), bits(b)), _mm512_unpackhi_epi32(bits(a), bits(b)));
  };
  __m512i rows[4];  // [block of lanes][4]
  for (int i = 0; i < 4; ++i) {
    const __m512i a = halves(sums[i][0], sums[i][1]), b = halves(sums[i][2], sums[i][3]);
    rows[i] = add(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  const auto blocks = [&](__m512i a, __m512i b) {
    return add(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
  };
  return reinterpret_cast<V>(blocks(blocks(rows[0], rows[1]), blocks(rows[2], rows[3])));
}

#endif  // HWY_TARGET
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

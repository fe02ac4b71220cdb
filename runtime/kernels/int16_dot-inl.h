// Products of codes without conversion to floats: dot products of 16-bit numbers with 32-bit sums
// (AVX-512), faster than float32. Keys, queries and weights are rounded to 14 bits or more of their
// tile's largest one, sums are exact.
#if defined(KVC_RUNTIME_KERNELS_INT16_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_INT16_DOT_INL_H_
#undef KVC_RUNTIME_KERNELS_INT16_DOT_INL_H_
#else
#define KVC_RUNTIME_KERNELS_INT16_DOT_INL_H_
#endif

#undef KVC_HAS_INT16_DOT

#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/read_ahead.h"
#include "runtime/kernels/row_sources-inl.h"
#include "runtime/kernels/sum_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

#define KVC_HAS_INT16_DOT 1
// Which steps fetch a line: every one, or fewer; a step reads kLine bytes of the largest codes.
template <class Row>
constexpr std::int64_t steps_per_line() {
  return 8 / Row::kBits;
}
// Step `step` of a loop that fetches ahead.lines().
template <class Row>
HWY_INLINE void fetch_line(const char* lines, std::int64_t step) {
  if (step % steps_per_line<Row>() == 0) {
    _mm_prefetch(lines + step / steps_per_line<Row>() * ReadAhead::kLine, _MM_HINT_T1);
  }
}

// sums + products of pairs of neighbouring 16-bit numbers, in one instruction with AVX-512 VNNI. In
// assembly, because no compiled target has it.
template <bool kVnni>
inline __m512i add_products(__m512i sums, __m512i a, __m512i b) {
  if constexpr (kVnni) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
  } else {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
  }
}
// body(constant: whether there is VNNI)
template <class Body>
void with_dot(bool vnni, const Body& body) {
  vnni ? body(std::true_type()) : body(std::false_type());
}

// Codes of kRun channels as 16-bit numbers, in order.
template <class Row>
__m512i load_run(const std::uint8_t* row, std::int64_t channel) {
  if constexpr (Row::kBits == 8) {
    return _mm512_cvtepu8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + channel)));
  } else if constexpr (Row::kBits == 2) {
    const __m256i bytes = _mm256_set1_epi64x(load_as<std::int64_t>(row + channel / 4, 0));
    const __m512i shifts = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_setr_m128i(_mm_setzero_si128(), _mm_set1_epi16(2))),
        _mm256_setr_m128i(_mm_set1_epi16(4), _mm_set1_epi16(6)), 1);
    return _mm512_and_si512(_mm512_srlv_epi16(_mm512_cvtepu8_epi16(bytes), shifts),
                            _mm512_set1_epi16(3));
  } else {
    const __m256i both =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + channel / 2)));
    const __m256i low = _mm256_and_si256(both, _mm256_set1_epi16(15));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_srli_epi16(both, 4), 1);
  }
}

// Bytes as the high halves of 16-bit numbers, by VBMI if has_avx512_vnni().
template <bool kVnni>
HWY_INLINE __m512i spread_bytes(__m256i bytes) {
  if constexpr (kVnni) {
    const __m512i places =
        _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_setr_epi8(
                              0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
                              20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31)),
                          8);
    const __mmask64 high = 0xAAAAAAAAAAAAAAAA;
    __m512i to;
    asm("vpermb %2, %1, %0%{%3%}%{z%}"
        : "=v"(to)
        : "v"(places), "v"(_mm512_castsi256_si512(bytes)), "Yk"(high));
    return to;
  } else {
    return _mm512_slli_epi16(_mm512_cvtepu8_epi16(bytes), 8);
  }
}

// Blocks of eight 16-bit numbers, all numbers of a block equal.
inline __m512i blocks_of(int a, int b, int c, int d) {
  const auto block = [](int x) { return _mm_set1_epi16(static_cast<short>(x)); };
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_setr_m128i(block(a), block(b))),
                            _mm256_setr_m128i(block(c), block(d)), 1);
}

// The same codes in the highest bits of their numbers.
template <class Row, bool kVnni>
HWY_INLINE __m512i load_high_run(const std::uint8_t* row, std::int64_t channel) {
  if constexpr (Row::kBits == 8) {
    return spread_bytes<kVnni>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + channel)));
  } else if constexpr (Row::kBits == 2) {
    const __m256i bytes = _mm256_set1_epi64x(load_as<std::int64_t>(row + channel / 4, 0));
    return _mm512_and_si512(_mm512_sllv_epi16(spread_bytes<kVnni>(bytes), blocks_of(6, 4, 2, 0)),
                            _mm512_set1_epi16(static_cast<short>(0xC000)));
  } else {
    const __m256i bytes = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + channel / 2)));
    return _mm512_and_si512(_mm512_sllv_epi16(spread_bytes<kVnni>(bytes), blocks_of(4, 4, 0, 0)),
                            _mm512_set1_epi16(static_cast<short>(0xF000)));
  }
}

// Sixteen floats of each, rounded, as 16-bit numbers in order; none is beyond those.
inline __m512i to_int16(__m512 low, __m512 high) {
  const __m512i even =
      _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_setr_epi8(
                            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
                            20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31)),
                        1);
  return _mm512_permutex2var_epi16(_mm512_cvtps_epi32(low), even, _mm512_cvtps_epi32(high));
}

#else
#define KVC_HAS_INT16_DOT 0
#endif  // HWY_TARGET
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

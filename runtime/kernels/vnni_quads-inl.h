// Codes of a tile in quads of coefficients, and their dot products with integers (AVX-512 VNNI).
#if defined(KVC_RUNTIME_KERNELS_VNNI_QUADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_VNNI_QUADS_INL_H_
#undef KVC_RUNTIME_KERNELS_VNNI_QUADS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_VNNI_QUADS_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "runtime/kernels/integer_rows.h"
#include "runtime/kernels/vnni_codes-inl.h"

#if KVC_HAS_VNNI_CODES
KVC_BEFORE_VNNI();
namespace kvc::HWY_NAMESPACE {

inline constexpr std::int64_t kQuadBytes = IntegerRows::kQuad * kTileTokens;

// [kTileTokens, kQuad], by halves.
struct CodeQuad {
  __m512i half[2];
};

// Where each byte of a quad is in its coefficients' rows.
constexpr std::array<std::uint8_t, kQuadBytes> quad_places() {
  std::array<std::uint8_t, kQuadBytes> places{};
  for (std::size_t i = 0; i < places.size(); ++i) {
    places[i] =
        static_cast<std::uint8_t>(i % IntegerRows::kQuad * kTileTokens + i / IntegerRows::kQuad);
  }
  return places;
}

// A quad of the coefficients of `integers`, from a tile's codes [coefficients, kTileTokens].
template <bool kRun>
HWY_INLINE CodeQuad read_quad(const IntegerRows& integers, std::int64_t quad,
                              const std::uint8_t* codes) {
  alignas(64) static constexpr std::array<std::uint8_t, kQuadBytes> kPlaces = quad_places();
  __m512i rows[2];
  if constexpr (kRun) {  // the tile's first coefficients
    rows[0] = _mm512_loadu_si512(codes + quad * kQuadBytes);
    rows[1] = _mm512_loadu_si512(codes + quad * kQuadBytes + 64);
  } else {
    const std::int32_t* coefficients = integers.coefficients() + quad * IntegerRows::kQuad;
    const auto row = [&](int i) {
      return reinterpret_cast<const __m256i*>(codes + coefficients[i] * kTileTokens);
    };
    for (int i = 0; i < 2; ++i) {
      rows[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(row(2 * i))),
                                   _mm256_loadu_si256(row(2 * i + 1)), 1);
    }
  }
  const __m512i first = _mm512_load_si512(kPlaces.data());
  const __m512i second = _mm512_load_si512(kPlaces.data() + 64);
  return {{_mm512_permutex2var_epi8(rows[0], first, rows[1]),
           _mm512_permutex2var_epi8(rows[0], second, rows[1])}};
}

// Integer products of codes and kCount rows: [rows][tokens of a tile by halves].
template <int kCount>
struct RowSums {
  __m512i of[kCount][2];

  HWY_INLINE void clear() {
    for_constants<kCount>([&](auto i)
                              HWY_ATTR { of[i()][0] = of[i()][1] = _mm512_setzero_si512(); });
  }
  // weights: [kCount or more, kQuad]
  HWY_INLINE void add(const CodeQuad& codes, const std::int8_t* weights) {
    for_constants<kCount>([&](auto i) HWY_ATTR {
      std::int32_t four;
      std::memcpy(&four, weights + i() * IntegerRows::kQuad, sizeof(four));
      const __m512i weight = _mm512_set1_epi32(four);
      of[i()][0] = add_products(of[i()][0], codes.half[0], weight);
      of[i()][1] = add_products(of[i()][1], codes.half[1], weight);
    });
  }
  // Those of high bytes become those of whole integers, but for low bytes.
  HWY_INLINE void widen() {
    for_constants<kCount>([&](auto i) HWY_ATTR {
      of[i()][0] = _mm512_slli_epi32(of[i()][0], 8);
      of[i()][1] = _mm512_slli_epi32(of[i()][1], 8);
    });
  }
};

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVC_HAS_VNNI_CODES

#endif

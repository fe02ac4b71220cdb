// Codes of tiles as bytes, on processors that shift and permute bytes (AVX-512 VBMI).
#if defined(KVC_RUNTIME_KERNELS_VNNI_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_VNNI_CODES_INL_H_
#undef KVC_RUNTIME_KERNELS_VNNI_CODES_INL_H_
#else
#define KVC_RUNTIME_KERNELS_VNNI_CODES_INL_H_
#endif

#undef KVC_HAS_VNNI_CODES
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/integer_rows.h"
#include "runtime/kernels/tile_products-inl.h"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define KVC_HAS_VNNI_CODES 1
// Replaces HWY_BEFORE_NAMESPACE: adds the instructions of has_avx512_vnni() to the target's.
#define KVC_BEFORE_VNNI() HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni,avx512vbmi")

KVC_BEFORE_VNNI();
namespace kvc::HWY_NAMESPACE {

// body(constant: 0), ..., body(constant: kCount - 1): arrays that they index stay in registers.
template <int kCount, class Body>
HWY_INLINE void for_constants(const Body& body) {
  [&]<int... kAt>(std::integer_sequence<int, kAt...>) HWY_ATTR {
    (body(std::integral_constant<int, kAt>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

// sums + the sums of four neighbouring products each. GCC 12 copies the sums of the intrinsic in every step of a loop, and
// spills them.
HWY_INLINE __m512i add_products(__m512i sums, __m512i codes, __m512i weights) {
#if HWY_COMPILER_GCC_ACTUAL
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes), "v"(weights));
  return sums;
#else
  return _mm512_dpbusd_epi32(sums, codes, weights);
#endif
}

// The planes of two neighbouring coefficients of one width. Every 64-bit lane takes the bytes of 8 tokens, one plane
// behind the other, and cuts each token's bits of a plane out of them.
struct WidthTable {
  struct Plane {
    alignas(64) std::array<std::uint8_t, 64> shifts{};  // of each token's byte
    int mask = 0;                                       // of the plane's bits in a code
  };
  alignas(64) std::array<std::uint8_t, 64> bytes{};
  std::array<Plane, 3> planes{};
  int count = 0;  // of planes
};

constexpr WidthTable width_table(int bits) {
  WidthTable table;
  int offset = 0, in_lane = 0, below = bits;
  for (int plane = kWidestCode; plane >= 1; plane /= 2) {
    if ((bits & plane) == 0) {
      continue;
    }
    below -= plane;
    WidthTable::Plane& of_plane = table.planes[static_cast<std::size_t>(table.count++)];
    of_plane.mask = ((1 << plane) - 1) << below;
    for (int i = 0; i < 64; ++i) {
      const int lane = i / 8, token = i % 8;
      of_plane.shifts[static_cast<std::size_t>(i)] =
          static_cast<std::uint8_t>((8 * in_lane + token * plane - below) & 63);
      if (token < plane) {
        table.bytes[static_cast<std::size_t>(8 * lane + in_lane + token)] =
            static_cast<std::uint8_t>(lane / 4 * 4 * bits + offset + lane % 4 * plane + token);
      }
    }
    offset += 4 * plane;
    in_lane += plane;
  }
  return table;
}

// Two coefficients of kBits bits that `packed` begins with, as [2, kTileTokens] bytes.
template <int kBits>
HWY_INLINE __m512i unpack_two(__m512i packed) {
  static constexpr WidthTable kTable = width_table(kBits);
  if constexpr (kBits == kWidestCode) {
    return packed;
  } else {
    const __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(kTable.bytes.data()), packed);
    __m512i codes = _mm512_setzero_si512();
    int mask = 0;
    for (int i = 0; i < kTable.count; ++i) {
      const WidthTable::Plane& plane = kTable.planes[static_cast<std::size_t>(i)];
      const __m512i bits =
          _mm512_multishift_epi64_epi8(_mm512_load_si512(plane.shifts.data()), bytes);
      // Takes bits of `mask` from the codes so far, others from the plane.
      codes = i == 0 ? bits
                     : _mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(mask)), codes,
                                                 bits, 0xCA);
      mask |= plane.mask;
    }
    return _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>((1 << kBits) - 1)));
  }
}

// At least the bytes of two coefficients of kBits bits, where there are so many before `end`: only the last
// bytes of a tile are read with a mask, which is slower.
template <int kBits>
HWY_INLINE __m512i load_two(const std::uint8_t* from, const std::uint8_t* end) {
  constexpr std::int64_t kBytes = 2 * kBits * kTileTokens / 8;
  constexpr std::int64_t kLoaded = kBytes <= 16 ? 16 : kBytes <= 32 ? 32 : 64;
  if (end - from < kLoaded) {
    return _mm512_maskz_loadu_epi8(~__mmask64{0} >> (64 - std::min(kBytes, end - from)), from);
  }
  if constexpr (kLoaded == 16) {
    return _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (kLoaded == 32) {
    return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  } else {
    return _mm512_loadu_si512(from);
  }
}

// `count` coefficients to [count, kTileTokens]; both pointers move behind them.
template <int kBits>
HWY_INLINE void unpack_width(std::int64_t count, const std::uint8_t* end, const std::uint8_t*& from,
                             std::uint8_t*& to) {
  constexpr std::int64_t kBytes = kBits * kTileTokens / 8;
  std::int64_t i = 0;
  for (; i + 2 <= count; i += 2, from += 2 * kBytes, to += 2 * kTileTokens) {
    _mm512_storeu_si512(to, unpack_two<kBits>(load_two<kBits>(from, end)));
  }
  if (i < count) {
    const __m512i codes = unpack_two<kBits>(load_two<kBits>(from, end));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(codes));
    from += kBytes;
    to += kTileTokens;
  }
}

// Gains and codes of a tile, padded with zeros to whole quads of coefficients, at least one.
class VnniCodes {
 public:
  static constexpr std::int64_t kRowStride = kTileTokens;

  explicit VnniCodes(const TileLayout& layout)
      : layout_(layout),
        rows_(
            static_cast<std::size_t>((layout.num_coefficients() / kQuad + 2) * kQuad * kTileTokens),
            0) {}

  void read(const std::uint8_t* from) {
    if (layout_.gain) {
      unpack_gains(layout_, from, gains_);
    }
    const std::uint8_t* end = from + layout_.bytes();
    std::uint8_t* to = rows_.data();
    unpack_width<8>(layout_.coefficients[8], end, from, to);
    unpack_width<7>(layout_.coefficients[7], end, from, to);
    unpack_width<6>(layout_.coefficients[6], end, from, to);
    unpack_width<5>(layout_.coefficients[5], end, from, to);
    unpack_width<4>(layout_.coefficients[4], end, from, to);
    unpack_width<3>(layout_.coefficients[3], end, from, to);
    unpack_width<2>(layout_.coefficients[2], end, from, to);
    unpack_width<1>(layout_.coefficients[1], end, from, to);
  }

  const float* gains() const { return layout_.gain ? gains_ : nullptr; }  // null: ones
  const std::uint8_t* rows() const { return rows_.data(); }  // [coefficients, kTileTokens]

 private:
  static constexpr std::int64_t kQuad = IntegerRows::kQuad;

  TileLayout layout_;
  AlignedVector<std::uint8_t> rows_;
  float gains_[kTileTokens] = {};
};

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#else
#define KVC_HAS_VNNI_CODES 0
#endif  // HWY_TARGET

#endif

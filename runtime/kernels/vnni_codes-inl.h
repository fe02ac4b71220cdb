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

// Bytes of each output byte's 64-bit lane, and the place of its 8 bits there.
struct PlaneTable {
  alignas(64) std::array<std::uint8_t, 64> bytes{};
  alignas(64) std::array<std::uint8_t, 64> shifts{};
  int mask = 0;  // of the plane's bits in a code
};

// The planes of two neighbouring coefficients of one width.
struct WidthTable {
  std::array<PlaneTable, 3> planes{};
  int count = 0;
};

constexpr WidthTable width_table(int bits) {
  WidthTable table;
  int offset = 0, below = bits;
  for (int plane = kWidestCode; plane >= 1; plane /= 2) {
    if ((bits & plane) == 0) {
      continue;
    }
    below -= plane;
    PlaneTable& of_plane = table.planes[static_cast<std::size_t>(table.count++)];
    of_plane.mask = ((1 << plane) - 1) << below;
    for (int i = 0; i < 64; ++i) {
      const int lane = i / 8, byte = i % 8;
      const auto at = static_cast<std::size_t>(i);
      of_plane.bytes[at] =
          static_cast<std::uint8_t>(lane / 4 * 4 * bits + offset + lane % 4 * plane + byte % plane);
      of_plane.shifts[at] = static_cast<std::uint8_t>((byte * plane - below) & 63);
    }
    offset += 4 * plane;
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
    __m512i codes = _mm512_setzero_si512();
    int mask = 0;
    for (int i = 0; i < kTable.count; ++i) {
      const PlaneTable& plane = kTable.planes[static_cast<std::size_t>(i)];
      const __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(plane.bytes.data()), packed);
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

// Gains and codes of kTiles tiles, padded with zeros to whole quads of coefficients, at least one.
class VnniCodes {
 public:
  static constexpr std::int64_t kTiles = kGroupTiles;
  static constexpr std::int64_t kRowStride = kTileTokens;  // a row has a coefficient of one tile

  explicit VnniCodes(const TileLayout& layout)
      : layout_(layout),
        num_quads_((layout.num_coefficients() + IntegerRows::kQuad - 1) / IntegerRows::kQuad),
        rows_(static_cast<std::size_t>(kTiles * bytes() + IntegerRows::kQuad * kTileTokens), 0) {}

  void read(const std::uint8_t* from, std::int64_t tile) {
    if (layout_.gain) {
      unpack_gains(layout_, from, gains_ + tile * kTileTokens);
    }
    const std::uint8_t* end = from + layout_.bytes();
    std::uint8_t* to = rows_.data() + tile * bytes();
    unpack_width<8>(layout_.coefficients[8], end, from, to);
    unpack_width<7>(layout_.coefficients[7], end, from, to);
    unpack_width<6>(layout_.coefficients[6], end, from, to);
    unpack_width<5>(layout_.coefficients[5], end, from, to);
    unpack_width<4>(layout_.coefficients[4], end, from, to);
    unpack_width<3>(layout_.coefficients[3], end, from, to);
    unpack_width<2>(layout_.coefficients[2], end, from, to);
    unpack_width<1>(layout_.coefficients[1], end, from, to);
  }

  // From a tile on; null: ones.
  const float* gains(std::int64_t tile) const {
    return layout_.gain ? gains_ + tile * kTileTokens : nullptr;
  }
  std::int64_t num_quads() const { return num_quads_; }
  // [num_quads, kQuad, kTileTokens]
  const std::uint8_t* rows(std::int64_t tile) const { return rows_.data() + tile * bytes(); }

 private:
  std::int64_t bytes() const { return num_quads_ * IntegerRows::kQuad * kTileTokens; }

  TileLayout layout_;
  std::int64_t num_quads_;
  AlignedVector<std::uint8_t> rows_;
  float gains_[kGroupTokens] = {};
};

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#else
#define KVC_HAS_VNNI_CODES 0
#endif  // HWY_TARGET

#endif

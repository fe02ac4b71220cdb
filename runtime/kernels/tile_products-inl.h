// Codes of a tile, and their products with integer weights.
#if defined(KVC_RUNTIME_KERNELS_TILE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_TILE_PRODUCTS_INL_H_
#undef KVC_RUNTIME_KERNELS_TILE_PRODUCTS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_TILE_PRODUCTS_INL_H_
#endif

#undef KVC_HAS_INT8_DOT
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/kernels/coded_keys.h"
#include "runtime/kernels/unpack_tile-inl.h"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define KVC_HAS_INT8_DOT 1
#else
#define KVC_HAS_INT8_DOT 0
#endif

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

using Tokens = hn::CappedTag<float, 16>;
using TokenVec = hn::Vec<Tokens>;

// A byte per code, padded with zeros to whole quads of coefficients.
class TileCodes {
 public:
  explicit TileCodes(std::int64_t num_coefficients)
      : rows_(padded(num_coefficients) * kTileTokens, 0)
#if KVC_HAS_INT8_DOT
        ,
        quads_(rows_.size())
#endif
  {
  }

  void read(const TileLayout& layout, const std::uint8_t* tile) {
    unpack_codes(layout, tile, rows_.data());
#if KVC_HAS_INT8_DOT
    constexpr std::size_t kBytes = CodedKeyRows::kQuad * kTileTokens;
    for (std::size_t first = 0; first < rows_.size(); first += kBytes) {
      interleave(rows_.data() + first, quads_.data() + first);
    }
#endif
  }

  // Of tokens `token` on, a vector.
  TokenVec floats(std::int64_t coefficient, std::int64_t token) const {
    const Tokens d;
    const hn::Rebind<std::uint8_t, Tokens> d8;
    const hn::Rebind<std::int32_t, Tokens> d32;
    return hn::ConvertTo(
        d, hn::PromoteTo(d32, hn::LoadU(d8, rows_.data() + coefficient * kTileTokens + token)));
  }
#if KVC_HAS_INT8_DOT
  // [quads, kTileTokens, kQuad]
  const std::uint8_t* quads() const { return quads_.data(); }
#endif

 private:
  static std::size_t padded(std::int64_t count) {
    constexpr std::int64_t kQuad = CodedKeyRows::kQuad;
    return static_cast<std::size_t>((count + kQuad - 1) / kQuad * kQuad);
  }
#if KVC_HAS_INT8_DOT
  // [kQuad, kTileTokens] to [kTileTokens, kQuad]
  static void interleave(const std::uint8_t* rows, std::uint8_t* to) {
    const Bytes d;
    const hn::Repartition<std::uint16_t, Bytes> d16;
    for (std::int64_t token = 0; token < kTileTokens; token += 16, to += 64) {
      const auto row = [&](std::int64_t i) { return hn::LoadU(d, rows + i * kTileTokens + token); };
      const auto a = row(0), b = row(1), c = row(2), e = row(3);
      const auto ab = hn::BitCast(d16, hn::InterleaveLower(d, a, b));
      const auto ab_up = hn::BitCast(d16, hn::InterleaveUpper(d, a, b));
      const auto ce = hn::BitCast(d16, hn::InterleaveLower(d, c, e));
      const auto ce_up = hn::BitCast(d16, hn::InterleaveUpper(d, c, e));
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d16, ab, ce)), d, to);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d16, ab, ce)), d, to + 16);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d16, ab_up, ce_up)), d, to + 32);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d16, ab_up, ce_up)), d, to + 48);
    }
  }
#endif

  std::vector<std::uint8_t> rows_;
#if KVC_HAS_INT8_DOT
  std::vector<std::uint8_t> quads_;
#endif
};

#if KVC_HAS_INT8_DOT

// Highway's target does not say that there are dot products of bytes (AVX512_VNNI).
inline bool has_int8_dot() {
  static const bool has = __builtin_cpu_supports("avx512vnni") != 0;
  return has;
}

// Sums of `quads` quads of codes [quads, kTileTokens, kQuad] times weights [quads, kChannels, kQuad], times
// `unit`, on top of what is in `to`, [kChannels, kTileTokens].
__attribute__((target("avx512f,avx512bw,avx512vnni"))) inline void add_int8_dots(
    const std::uint8_t* codes, const std::int8_t* weights, std::int64_t quads, float unit,
    float* to) {
  constexpr std::int64_t kChannels = CodedKeyRows::kChannels;
  __m512i sums[kChannels][2];
  for (auto& of_channel : sums) {
    of_channel[0] = of_channel[1] = _mm512_setzero_si512();
  }
  for (std::int64_t quad = 0; quad < quads; ++quad, codes += CodedKeyRows::kQuad * kTileTokens) {
    const __m512i first = _mm512_loadu_si512(codes), second = _mm512_loadu_si512(codes + 64);
    for (std::int64_t i = 0; i < kChannels; ++i, weights += CodedKeyRows::kQuad) {
      std::int32_t four;
      std::memcpy(&four, weights, sizeof(four));
      const __m512i weight = _mm512_set1_epi32(four);
      sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], first, weight);
      sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], second, weight);
    }
  }
  const __m512 factor = _mm512_set1_ps(unit);
  for (std::int64_t i = 0; i < kChannels; ++i, to += kTileTokens) {
    for (std::int64_t half = 0; half < 2; ++half) {
      _mm512_storeu_ps(to + 16 * half, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i][half]), factor,
                                                       _mm512_loadu_ps(to + 16 * half)));
    }
  }
}

#endif  // KVC_HAS_INT8_DOT

// Sums of codes times integers of kChannels channels from `channel` on. to: [kChannels, kTileTokens]
inline void multiply_codes(const CodedKeyRows& rows, std::int64_t channel, const TileCodes& codes,
                           float* to) {
  constexpr std::int64_t kChannels = CodedKeyRows::kChannels, kQuad = CodedKeyRows::kQuad;
#if KVC_HAS_INT8_DOT
  if (has_int8_dot()) {
    std::fill_n(to, kChannels * kTileTokens, 0.0f);
    add_int8_dots(codes.quads(), rows.high(channel), rows.num_quads(), 256, to);
    add_int8_dots(codes.quads(), rows.low(channel), rows.num_wide() / kQuad, 1, to);
    return;
  }
#endif
  const Tokens d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
    TokenVec sums[kChannels] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d),
                                hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (std::int64_t c = 0; c < rows.num_quads() * kQuad; ++c) {
      const TokenVec code = codes.floats(c, token);
      const std::int64_t place = c / kQuad * kChannels * kQuad + c % kQuad;
      const std::int8_t* high = rows.high(channel) + place;
      const std::int8_t* low = c < rows.num_wide() ? rows.low(channel) + place : nullptr;
      for (std::int64_t i = 0; i < kChannels; ++i) {
        const int weight = 256 * high[i * kQuad] + (low == nullptr ? 0 : low[i * kQuad]);
        sums[i] = hn::MulAdd(code, hn::Set(d, static_cast<float>(weight)), sums[i]);
      }
    }
    for (std::int64_t i = 0; i < kChannels; ++i) {
      hn::StoreU(sums[i], d, to + i * kTileTokens + token);
    }
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

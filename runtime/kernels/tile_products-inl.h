// Codes of a tile, and their products with integer weights.
#if defined(KVC_RUNTIME_KERNELS_TILE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_TILE_PRODUCTS_INL_H_
#undef KVC_RUNTIME_KERNELS_TILE_PRODUCTS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_TILE_PRODUCTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/kernels/coded_keys.h"
#include "runtime/kernels/unpack_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

using Tokens = hn::CappedTag<float, 16>;
using TokenVec = hn::Vec<Tokens>;

// Gains of a tile's tokens, and a byte per code, padded with zeros to whole quads of coefficients.
class TileCodes {
 public:
  explicit TileCodes(const TileLayout& layout)
      : layout_(layout), rows_(padded(layout.num_coefficients()) * kTileTokens, 0) {}

  void read(const std::uint8_t* tile) {
    unpack_codes(layout_, tile, rows_.data());
    tile_gains(layout_, tile, gains_);
  }

  const float* gains() const { return gains_; }  // [kTileTokens]

  // For tokens `token` on, a vector.
  TokenVec floats(std::int64_t coefficient, std::int64_t token) const {
    const Tokens d;
    const hn::Rebind<std::uint8_t, Tokens> d8;
    const hn::Rebind<std::int32_t, Tokens> d32;
    return hn::ConvertTo(
        d, hn::PromoteTo(d32, hn::LoadU(d8, rows_.data() + coefficient * kTileTokens + token)));
  }

 private:
  static std::size_t padded(std::int64_t count) {
    constexpr std::int64_t kQuad = CodedKeyRows::kQuad;
    return static_cast<std::size_t>((count + kQuad - 1) / kQuad * kQuad);
  }

  TileLayout layout_;
  float gains_[kTileTokens] = {};
  std::vector<std::uint8_t> rows_;
};

// Sums of codes times integers of kChannels channels from `channel` on. to: [kChannels, kTileTokens]
inline void multiply_codes(const CodedKeyRows& rows, std::int64_t channel, const TileCodes& codes,
                           float* to) {
  constexpr std::int64_t kChannels = CodedKeyRows::kChannels, kQuad = CodedKeyRows::kQuad;
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

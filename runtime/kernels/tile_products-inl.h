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

#include "runtime/kernels/integer_rows.h"
#include "runtime/kernels/unpack_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

using Tokens = hn::CappedTag<float, 16>;
using TokenVec = hn::Vec<Tokens>;

inline constexpr std::int64_t kHeadsTogether = 4;  // query heads of one KV head

HWY_INLINE TokenVec float_codes(const std::uint8_t* codes) {
  const Tokens d;
  const hn::Rebind<std::uint8_t, Tokens> d8;
  const hn::Rebind<std::int32_t, Tokens> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes)));
}

// Gains of a tile's tokens, and a byte per code, padded with zeros to whole quads of coefficients, at least one.
class TileCodes {
 public:
  static constexpr std::int64_t kTiles = 1;  // that are read together

  explicit TileCodes(const TileLayout& layout)
      : layout_(layout), rows_(padded(layout.num_coefficients()) * kTileTokens, 0) {}

  void read(const std::uint8_t* tile, std::int64_t) {
    unpack_codes(layout_, tile, rows_.data());
    unpack_gains(layout_, tile, gains_);
  }

  const float* gains(std::int64_t) const { return gains_; }  // [kTileTokens]
  const std::uint8_t* rows(std::int64_t) const {
    return rows_.data();
  }  // [coefficients, kTileTokens]

  // For tokens `token` on, a vector.
  TokenVec floats(std::int64_t coefficient, std::int64_t token) const {
    return float_codes(rows_.data() + coefficient * kTileTokens + token);
  }

 private:
  static std::size_t padded(std::int64_t count) {
    constexpr std::int64_t kQuad = IntegerRows::kQuad;
    return static_cast<std::size_t>((std::max<std::int64_t>(1, count) + kQuad - 1) / kQuad * kQuad);
  }

  TileLayout layout_;
  float gains_[kTileTokens] = {};
  std::vector<std::uint8_t> rows_;
};

// Sums of codes times integers of kRows rows from `row` on. to: [kRows, kTileTokens]
inline void multiply_codes(const IntegerRows& rows, std::int64_t row, const TileCodes& codes,
                           float* to) {
  constexpr std::int64_t kRows = IntegerRows::kRows, kQuad = IntegerRows::kQuad;
  const Tokens d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
    TokenVec sums[kRows] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d),
                            hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (std::int64_t c = 0; c < rows.num_quads() * kQuad; ++c) {
      const TokenVec code = codes.floats(rows.coefficients()[c], token);
      const std::int64_t place = c / kQuad * kRows * kQuad + c % kQuad;
      const std::int8_t* high = rows.high(row) + place;
      const std::int8_t* low = c < rows.num_wide() ? rows.low(row) + place : nullptr;
      for (std::int64_t i = 0; i < kRows; ++i) {
        const int weight = 256 * high[i * kQuad] + (low == nullptr ? 0 : low[i * kQuad]);
        sums[i] = hn::MulAdd(code, hn::Set(d, static_cast<float>(weight)), sums[i]);
      }
    }
    for (std::int64_t i = 0; i < kRows; ++i) {
      hn::StoreU(sums[i], d, to + i * kTileTokens + token);
    }
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

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
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/integer_rows.h"
#include "runtime/kernels/unpack_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

using Tokens = hn::CappedTag<float, 16>;
using TokenVec = hn::Vec<Tokens>;

inline constexpr std::int64_t kHeadsTogether = 4;  // query heads of one KV head
inline constexpr std::int64_t kGroupTiles = 4;     // that are read together
inline constexpr std::int64_t kGroupTokens = kGroupTiles * kTileTokens;

// body(constant: count) for 1 to kHeadsTogether heads.
template <class Body>
HWY_INLINE void with_heads(std::int64_t count, const Body& body) {
  switch (count) {
    case 1:
      return body(std::integral_constant<int, 1>());
    case 2:
      return body(std::integral_constant<int, 2>());
    case 3:
      return body(std::integral_constant<int, 3>());
    default:
      return body(std::integral_constant<int, kHeadsTogether>());
  }
}

HWY_INLINE TokenVec float_codes(const std::uint8_t* codes) {
  const Tokens d;
  const hn::Rebind<std::uint8_t, Tokens> d8;
  const hn::Rebind<std::int32_t, Tokens> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes)));
}

// Gains and codes of kTiles tiles, a byte per code, padded with zeros to whole quads of coefficients, at least one.
class TileCodes {
 public:
  static constexpr std::int64_t kTiles = kGroupTiles;
  static constexpr std::int64_t kRowStride = kGroupTokens;  // a row has a coefficient of all tiles

  explicit TileCodes(const TileLayout& layout)
      : layout_(layout), rows_(padded(layout.num_coefficients()) * kRowStride, 0) {}

  void read(const std::uint8_t* from, std::int64_t tile = 0) {
    unpack_codes(layout_, from, kRowStride, rows_.data() + tile * kTileTokens);
    unpack_gains(layout_, from, gains_ + tile * kTileTokens);
  }

  // From a tile on.
  const float* gains(std::int64_t tile = 0) const { return gains_ + tile * kTileTokens; }
  // Rows of coefficients, kRowStride bytes apart, from the tile's tokens on.
  const std::uint8_t* rows(std::int64_t tile = 0) const {
    return rows_.data() + tile * kTileTokens;
  }

 private:
  static std::size_t padded(std::int64_t count) {
    constexpr std::int64_t kQuad = IntegerRows::kQuad;
    return static_cast<std::size_t>((std::max<std::int64_t>(1, count) + kQuad - 1) / kQuad * kQuad);
  }

  TileLayout layout_;
  float gains_[kGroupTokens] = {};
  AlignedVector<std::uint8_t> rows_;
};

// Rows of integers as 16-bit numbers, for products of pairs of coefficients.
class PairedRows {
 public:
  explicit PairedRows(const IntegerRows& rows) : rows_(&rows) {
    const std::int64_t of_block = rows.num_quads() * kBlock;
    integers_.resize(static_cast<std::size_t>((rows.num_rows() + kRows - 1) / kRows * of_block));
    std::int16_t* to = integers_.data();
    for (std::int64_t row = 0; row < rows.num_rows(); row += kRows, to += of_block) {
      const std::int8_t *high = rows.high(row), *low = rows.low(row);
      const std::int64_t wide = rows.num_wide() / kQuad * kBlock;
      for (std::int64_t i = 0; i < wide; ++i) {
        to[i] = static_cast<std::int16_t>(256 * high[i] + low[i]);
      }
      for (std::int64_t i = wide; i < of_block; ++i) {
        to[i] = static_cast<std::int16_t>(256 * high[i]);
      }
    }
  }

  // The numbers of a tile's codes that multiply() takes. [quads, 2, kTileTokens, 2]
  void spread(const std::uint8_t* codes, AlignedVector<std::int16_t>& pairs) const {
    const Integers d;
    const hn::Rebind<std::uint8_t, Integers> d8;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const std::int64_t count = rows_->num_quads() * kQuad;
    pairs.resize(static_cast<std::size_t>(count * kTileTokens));
    std::int16_t* to = pairs.data();
    for (std::int64_t c = 0; c < count; c += 2) {
      const std::uint8_t* first = codes + rows_->coefficients()[c] * TileCodes::kRowStride;
      const std::uint8_t* second = codes + rows_->coefficients()[c + 1] * TileCodes::kRowStride;
      for (std::int64_t token = 0; token < kTileTokens; token += lanes, to += 2 * lanes) {
        const auto low = hn::PromoteTo(d, hn::LoadU(d8, first + token));
        const auto high = hn::PromoteTo(d, hn::LoadU(d8, second + token));
        hn::StoreU(hn::BitCast(Pairs(), hn::Or(low, hn::ShiftLeft<16>(high))), Pairs(), to);
      }
    }
  }

  // Sums of a tile's codes times the integers of IntegerRows::kRows rows from `row` on, rounded once. to: [kRows, kTileTokens]
  void multiply(std::int64_t row, const AlignedVector<std::int16_t>& pairs, float* to) const {
    constexpr auto kStep = kVecs * static_cast<std::int64_t>(hn::MaxLanes(Integers()));
    for (std::int64_t i = 0; i < kRows; i += kRowsTogether) {
      const std::int16_t* weights = integers_.data() + (row * rows_->num_quads() + i) * kQuad;
      for (std::int64_t token = 0; token < kTileTokens; token += kStep) {
        multiply_some(weights, pairs.data() + 2 * token, to + i * kTileTokens + token);
      }
    }
  }

 private:
  using Integers = hn::Rebind<std::int32_t, Tokens>;
  using Pairs = hn::Repartition<std::int16_t, Integers>;
  static constexpr std::int64_t kRows = IntegerRows::kRows, kQuad = IntegerRows::kQuad;
  static constexpr std::int64_t kBlock = kRows * kQuad;
  static constexpr std::int64_t kRowsTogether = 4, kVecs = 2;

  HWY_INLINE void multiply_some(const std::int16_t* weights, const std::int16_t* pairs,
                                float* to) const {
    const Integers d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    hn::Vec<Integers> sums[kRowsTogether][kVecs], others[kRowsTogether][kVecs];
    for (int i = 0; i < kRowsTogether; ++i) {
      for (int vec = 0; vec < kVecs; ++vec) {
        sums[i][vec] = others[i][vec] = hn::Zero(d);
      }
    }
    for (std::int64_t quad = 0; quad < rows_->num_quads(); ++quad, weights += kBlock) {
      for (std::int64_t half = 0; half < 2; ++half, pairs += 2 * kTileTokens) {
        hn::Vec<Pairs> codes[kVecs];
        for (int vec = 0; vec < kVecs; ++vec) {
          codes[vec] = hn::LoadU(Pairs(), pairs + 2 * vec * lanes);
        }
        for (int i = 0; i < kRowsTogether; ++i) {
          std::int32_t both;
          std::memcpy(&both, weights + i * kQuad + 2 * half, sizeof(both));
          const auto weight = hn::BitCast(Pairs(), hn::Set(d, both));
          for (int vec = 0; vec < kVecs; ++vec) {
            sums[i][vec] =
                hn::ReorderWidenMulAccumulate(d, codes[vec], weight, sums[i][vec], others[i][vec]);
          }
        }
      }
    }
    for (int i = 0; i < kRowsTogether; ++i) {
      for (int vec = 0; vec < kVecs; ++vec) {
        const auto sum = hn::RearrangeToOddPlusEven(sums[i][vec], others[i][vec]);
        hn::StoreU(hn::ConvertTo(Tokens(), sum), Tokens(), to + i * kTileTokens + vec * lanes);
      }
    }
  }

  const IntegerRows* rows_;
  AlignedVector<std::int16_t> integers_;  // [blocks of rows, quads, kRows, kQuad]
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Codes of a tile (code_tiles.h) to a byte each.
#if defined(KVC_RUNTIME_KERNELS_UNPACK_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_UNPACK_TILE_INL_H_
#undef KVC_RUNTIME_KERNELS_UNPACK_TILE_INL_H_
#else
#define KVC_RUNTIME_KERNELS_UNPACK_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime/kernels/code_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// A block of 16 bytes for each of the coefficients that are unpacked together: two, or one with short vectors.
using Blocks = hn::CappedTag<std::uint8_t, kTileTokens>;
using BlockVec = hn::Vec<Blocks>;
inline constexpr std::int64_t kBlockTokens = 16;

// Tokens 0 to 15 and 16 to 31 of each coefficient.
struct TokenBlocks {
  BlockVec first, second;
};

// kBytes bytes at `from`, and as many at `next`, repeated in each one's block.
template <int kBytes>
HWY_INLINE BlockVec load_blocks(const std::uint8_t* from, const std::uint8_t* next) {
  using Number = std::conditional_t<kBytes == 8, std::uint64_t, std::uint32_t>;
  const hn::FixedTag<std::uint8_t, 16> d16;
  const auto block = [&](const std::uint8_t* bytes) HWY_ATTR {
    if constexpr (kBytes == 16) {
      return hn::LoadU(d16, bytes);
    } else {
      Number number;
      std::memcpy(&number, bytes, kBytes);
      return hn::BitCast(d16, hn::Set(hn::FixedTag<Number, 16 / kBytes>(), number));
    }
  };
#if HWY_TARGET <= HWY_AVX2
  return hn::Combine(Blocks(), block(next), block(from));
#else
  (void)next;
  return block(from);
#endif
}

// Bytes that hold kBits bits of one token and kBits of the next, as a byte for each: of the first half of every block,
// and of the second.
template <int kBits>
HWY_INLINE TokenBlocks split_bytes(BlockVec both) {
  const Blocks d;
  const hn::Repartition<std::uint16_t, Blocks> d16;
  const auto mask = hn::Set(d, static_cast<std::uint8_t>((1 << kBits) - 1));
  const auto even = hn::And(both, mask);
  const auto odd = hn::And(hn::BitCast(d, hn::ShiftRight<kBits>(hn::BitCast(d16, both))), mask);
  return {hn::InterleaveLower(d, even, odd), hn::InterleaveUpper(d, even, odd)};
}

// A plane of kBits bits, two or four.
template <int kBits>
HWY_INLINE TokenBlocks plane_codes(const std::uint8_t* from, const std::uint8_t* next) {
  const TokenBlocks halves = split_bytes<4>(load_blocks<kBits * kTileTokens / 8>(from, next));
  return kBits == 4 ? halves : split_bytes<2>(halves.first);
}

// -1 where a token's bit is set, else 0.
HWY_INLINE TokenBlocks plane_of_bits(const std::uint8_t* from, const std::uint8_t* next) {
  const Blocks d;
  alignas(32) static constexpr std::uint8_t kBytes[2 * kTileTokens] = {
      0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0,
      0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3,
      3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
  const auto bit =
      hn::BitCast(d, hn::Set(hn::Repartition<std::uint64_t, Blocks>(), 0x8040201008040201));
  const BlockVec bits = load_blocks<4>(from, next);
  const auto of_half = [&](const std::uint8_t* bytes) HWY_ATTR {
    const auto own = hn::And(hn::TableLookupBytes(bits, hn::Load(d, bytes)), bit);
    return hn::VecFromMask(d, hn::Eq(own, bit));
  };
  return {of_half(kBytes), of_half(kBytes + kTileTokens)};
}

template <int kBits>
HWY_INLINE BlockVec shift_codes(BlockVec codes) {  // no byte overflows
  const hn::Repartition<std::uint16_t, Blocks> d16;
  return hn::BitCast(Blocks(), hn::ShiftLeft<kBits>(hn::BitCast(d16, codes)));
}

// Codes of the coefficient at `from`, and of that at `next`, of 1 to 7 bits.
template <int kBits>
HWY_INLINE TokenBlocks next_codes(const std::uint8_t* from, const std::uint8_t* next) {
  const Blocks d;
  constexpr int kWide = kBits & 4, kMiddle = kBits & 2;
  TokenBlocks codes{hn::Zero(d), hn::Zero(d)};
  if constexpr (kWide != 0) {
    codes = plane_codes<4>(from, next);
    from += kWide * kTileTokens / 8;
    next += kWide * kTileTokens / 8;
  }
  if constexpr (kMiddle != 0) {
    const TokenBlocks low = plane_codes<2>(from, next);
    codes = {hn::Or(shift_codes<2>(codes.first), low.first),
             hn::Or(shift_codes<2>(codes.second), low.second)};
    from += kMiddle * kTileTokens / 8;
    next += kMiddle * kTileTokens / 8;
  }
  if constexpr ((kBits & 1) != 0) {
    const TokenBlocks low = plane_of_bits(from, next);
    codes = {hn::Sub(hn::Add(codes.first, codes.first), low.first),
             hn::Sub(hn::Add(codes.second, codes.second), low.second)};
  }
  return codes;
}

// `count` coefficients of kBits bits, from the tile's bytes at `from`; both pointers move behind them.
template <int kBits>
HWY_INLINE void unpack_coefficients(std::int64_t count, std::int64_t stride,
                                    const std::uint8_t*& from, std::uint8_t*& codes) {
  constexpr std::int64_t kBytes = kBits * kTileTokens / 8;
  if constexpr (kBits == kWidestCode) {
    for (std::int64_t i = 0; i < count; ++i, codes += stride) {
      std::memcpy(codes, from + i * kBytes, kBytes);
    }
  } else {
    const Blocks d;
    constexpr auto kTogether = static_cast<std::int64_t>(hn::MaxLanes(Blocks()) / kBlockTokens);
    for (std::int64_t i = 0; i < count; i += kTogether) {
      const std::uint8_t* at = from + i * kBytes;
      const bool last = i + 1 == count;
      const TokenBlocks tokens = next_codes<kBits>(at, last ? at : at + kBytes);
#if HWY_TARGET <= HWY_AVX2
      hn::StoreU(hn::ConcatLowerLower(d, tokens.second, tokens.first), d, codes);
      if (!last) {
        hn::StoreU(hn::ConcatUpperUpper(d, tokens.second, tokens.first), d, codes + stride);
      }
#else
      hn::StoreU(tokens.first, d, codes);
      hn::StoreU(tokens.second, d, codes + kBlockTokens);
#endif
      codes += std::min(kTogether, count - i) * stride;
    }
  }
  from += count * kBytes;
}

// codes: num_coefficients rows of kTileTokens, `stride` bytes apart.
inline void unpack_codes(const TileLayout& layout, const std::uint8_t* tile, std::int64_t stride,
                         std::uint8_t* codes) {
  unpack_coefficients<8>(layout.coefficients[8], stride, tile, codes);
  unpack_coefficients<7>(layout.coefficients[7], stride, tile, codes);
  unpack_coefficients<6>(layout.coefficients[6], stride, tile, codes);
  unpack_coefficients<5>(layout.coefficients[5], stride, tile, codes);
  unpack_coefficients<4>(layout.coefficients[4], stride, tile, codes);
  unpack_coefficients<3>(layout.coefficients[3], stride, tile, codes);
  unpack_coefficients<2>(layout.coefficients[2], stride, tile, codes);
  unpack_coefficients<1>(layout.coefficients[1], stride, tile, codes);
}

// As tile_gains(): a table in one vector of 8 floats or more.
inline void unpack_gains(const TileLayout& layout, const std::uint8_t* tile, float* gains) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::int32_t, decltype(d)> d32;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  if (!layout.gain || lanes < kNumGains) {
    tile_gains(layout, tile, gains);
    return;
  }
  HWY_ALIGN float table[16] = {};
  std::memcpy(table, kGains, sizeof(kGains));
  const auto values = hn::Load(d, table);
  const auto last = hn::Set(d32, kNumGains - 1);
  const std::uint8_t* from = tile + layout.code_bytes();
  for (std::size_t token = 0; token < kTileTokens; token += lanes) {
    const auto codes = hn::Min(hn::PromoteTo(d32, hn::LoadU(d8, from + token)), last);
    hn::StoreU(hn::TableLookupLanes(values, hn::IndicesFromVec(d, codes)), d, gains + token);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

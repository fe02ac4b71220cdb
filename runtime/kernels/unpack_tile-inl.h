// Codes of a tile (code_tiles.h) to a byte each.
#if defined(KVC_RUNTIME_KERNELS_UNPACK_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_UNPACK_TILE_INL_H_
#undef KVC_RUNTIME_KERNELS_UNPACK_TILE_INL_H_
#else
#define KVC_RUNTIME_KERNELS_UNPACK_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "runtime/kernels/code_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::FixedTag<std::uint8_t, 16>;
using ByteVec = hn::Vec<Bytes>;

// kTileTokens bytes.
struct TileBytes {
  ByteVec first, second;
};

// Bytes that hold kBits bits of one token and kBits of the next, as a byte for each.
template <int kBits>
TileBytes split_bytes(ByteVec both) {
  const Bytes d;
  const auto mask = hn::Set(d, static_cast<std::uint8_t>((1 << kBits) - 1));
  const auto even = hn::And(both, mask);
  const hn::Repartition<std::uint16_t, Bytes> d16;
  const auto shifted = hn::BitCast(d, hn::ShiftRight<kBits>(hn::BitCast(d16, both)));
  const auto odd = hn::And(shifted, mask);
  return {hn::InterleaveLower(d, even, odd), hn::InterleaveUpper(d, even, odd)};
}

inline ByteVec load_bytes(const std::uint8_t* from, std::size_t count) {
  HWY_ALIGN std::uint8_t bytes[16] = {};
  std::memcpy(bytes, from, count);
  return hn::Load(Bytes(), bytes);
}

// One plane; `from` moves behind it.
inline TileBytes next_plane(int bits, const std::uint8_t*& from) {
  const Bytes d;
  const std::uint8_t* plane = from;
  from += bits * kTileTokens / 8;
  switch (bits) {
    case 8:
      return {hn::LoadU(d, plane), hn::LoadU(d, plane + 16)};
    case 4:
      return split_bytes<4>(hn::LoadU(d, plane));
    case 2:
      return split_bytes<2>(split_bytes<4>(load_bytes(plane, 8)).first);
    default: {
      const ByteVec pairs = split_bytes<4>(load_bytes(plane, 4)).first;
      return split_bytes<1>(split_bytes<2>(pairs).first);
    }
  }
}

// Shifts by 1, 2 or 4 bits; no byte overflows.
inline ByteVec shift_left(ByteVec v, int bits) {
  const Bytes d;
  return bits == 1 ? hn::Add(v, v)
         : bits == 2
             ? hn::BitCast(
                   d, hn::ShiftLeft<2>(hn::BitCast(hn::Repartition<std::uint16_t, Bytes>(), v)))
             : hn::BitCast(
                   d, hn::ShiftLeft<4>(hn::BitCast(hn::Repartition<std::uint16_t, Bytes>(), v)));
}

// A coefficient of `bits` bits; `from` moves behind it.
inline TileBytes next_codes(int bits, const std::uint8_t*& from) {
  int plane = kWidestCode;
  while ((bits & plane) == 0) {
    plane /= 2;
  }
  TileBytes codes = next_plane(plane, from);
  while ((plane /= 2) > 0) {
    if ((bits & plane) != 0) {
      const TileBytes low = next_plane(plane, from);
      codes = {hn::Or(shift_left(codes.first, plane), low.first),
               hn::Or(shift_left(codes.second, plane), low.second)};
    }
  }
  return codes;
}

// codes: [num_coefficients, kTileTokens]
inline void unpack_codes(const TileLayout& layout, const std::uint8_t* tile, std::uint8_t* codes) {
  const Bytes d;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    for (std::int64_t i = 0; i < layout.coefficients[bits]; ++i, codes += kTileTokens) {
      const TileBytes bytes = next_codes(bits, tile);
      hn::StoreU(bytes.first, d, codes);
      hn::StoreU(bytes.second, d, codes + 16);
    }
  }
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

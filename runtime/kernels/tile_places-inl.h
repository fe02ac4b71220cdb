// Addresses of a tile's rows in any blocks.
#if defined(KVC_RUNTIME_KERNELS_TILE_PLACES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_TILE_PLACES_INL_H_
#undef KVC_RUNTIME_KERNELS_TILE_PLACES_INL_H_
#else
#define KVC_RUNTIME_KERNELS_TILE_PLACES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "runtime/kernels/kv_rows.h"
#include "runtime/kernels/quad_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// Addresses of a tile's rows. The last one is repeated behind the end.
struct TilePlaces {
  const std::uint8_t* rows[kTileRows];
  std::int64_t count = 0;

  // `number` rows of `row_bytes` bytes from `first` on.
  void set(const KvRows& all, std::int64_t row_bytes, std::int64_t first, std::int64_t number) {
    count = number;
    for (std::int64_t i = 0; i < number;) {
      const std::int64_t row = first + i, in_block = row % all.block_rows;
      const auto* from = static_cast<const std::uint8_t*>(all.blocks[row / all.block_rows]);
      const std::int64_t run = std::min(number - i, all.block_rows - in_block);
      for (std::int64_t line = 0; line < run; ++line) {
        rows[i + line] = from + (in_block + line) * row_bytes;
      }
      i += run;
    }
    std::fill(rows + number, rows + kTileRows, number == 0 ? nullptr : rows[number - 1]);
  }
};

// Prefetches an address, which need not be valid.
template <int kLines>
HWY_INLINE void fetch_lines(const std::uint8_t* from) {
  for (int line = 0; line < kLines; ++line) {
    __builtin_prefetch(from + 64 * line, /*to write=*/0, /*level 2=*/2);
  }
}

// One head's numbers in every row: bytes `offset` .. `offset` + `bytes` - 1.
struct HeadPlaces {
  const TilePlaces& tile;
  std::int64_t offset, bytes;
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

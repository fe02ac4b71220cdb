// nearest_rows: grid (tokens in tiles of 128, part of the others). A block goes through its part's tiles; every
// thread keeps the best of the columns it holds of each of its rows, which four lanes and four warps then join.
// join_nearest: grid (chunks of the block's threads); a thread joins one row's parts.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/cuda/nearest_rows.h"

namespace kvc {

struct Nearest {
  float product;
  std::int32_t index;
};

// The larger product; of equal ones the lower index. What is no number is never nearer.
KVC_HOST_DEVICE Nearest nearer(const Nearest& a, const Nearest& b) {
  const bool second = b.product > a.product || (b.product == a.product && b.index < a.index);
  return second ? b : a;
}
KVC_HOST_DEVICE Nearest no_nearest() { return {negative_infinity(), 0x7FFFFFFF}; }

// Tiles first .. last - 1 of the others for one part: whole tiles, as evenly as may be.
struct TileRange {
  int first, last;
};
KVC_HOST_DEVICE TileRange tiles_of_part(int num_rows, int parts, int part) {
  const int tiles = (num_rows + ProductTile::kColumns - 1) / ProductTile::kColumns;
  return {static_cast<int>(static_cast<std::int64_t>(tiles) * part / parts),
          static_cast<int>(static_cast<std::int64_t>(tiles) * (part + 1) / parts)};
}

template <class Thread>
KVC_DEVICE Nearest shuffle_nearest(const Nearest& own, int lanes, Thread& thread) {
  // An index below 2^24 is a float of its own.
  const float high = thread.shuffle_xor(static_cast<float>(own.index >> 16), lanes);
  const float low = thread.shuffle_xor(static_cast<float>(own.index & 0xFFFF), lanes);
  return {thread.shuffle_xor(own.product, lanes),
          static_cast<std::int32_t>(high) << 16 | static_cast<std::int32_t>(low)};
}

template <class T, class Thread>
KVC_DEVICE void nearest_rows_body(const NearestRows& params, Thread& thread) {
  using Tile = ProductTile;
  const int first_row = thread.block_x() * Tile::kRows, part = thread.block_y();
  const TileRange range = tiles_of_part(params.others.num_rows, params.num_parts, part);
  Nearest best[Tile::kFragmentRows][2];  // rows lane / 4 and 8 below of each fragment
  KVC_UNROLL
  for (int m = 0; m < Tile::kFragmentRows; ++m) {
    best[m][0] = best[m][1] = no_nearest();
  }
  for (int tile = range.first; tile < range.last; ++tile) {
    ProductSums sums;
    product_tile<T>(params.rows, first_row, params.others, tile * Tile::kColumns, sums, thread);
    KVC_UNROLL
    for (int m = 0; m < Tile::kFragmentRows; ++m) {
      KVC_UNROLL
      for (int n = 0; n < Tile::kFragmentColumns; ++n) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int column =
              tile * Tile::kColumns + Tile::column_of(thread.warp(), thread.lane(), n, i);
          if (column < params.others.num_rows) {
            best[m][i / 2] = nearer(best[m][i / 2], {sums[m][n][i], column});
          }
        }
      }
    }
  }
  auto* of_warps = reinterpret_cast<Nearest*>(thread.shared());  // [4, kRows]
  KVC_UNROLL
  for (int m = 0; m < Tile::kFragmentRows; ++m) {
    KVC_UNROLL
    for (int half = 0; half < 2; ++half) {
      Nearest own = best[m][half];
      own = nearer(own, shuffle_nearest(own, 1, thread));
      own = nearer(own, shuffle_nearest(own, 2, thread));
      if (thread.lane() % 4 == 0) {
        of_warps[thread.warp() % 4 * Tile::kRows +
                 Tile::row_of(thread.warp(), thread.lane(), m, 2 * half)] = own;
      }
    }
  }
  thread.sync();
  const int row = thread.index();
  if (row < Tile::kRows && first_row + row < params.rows.num_rows) {
    Nearest found = no_nearest();
    for (int warp = 0; warp < 4; ++warp) {
      found = nearer(found, of_warps[warp * Tile::kRows + row]);
    }
    const std::int64_t to =
        static_cast<std::int64_t>(part) * params.rows.num_rows + first_row + row;
    params.part_product[to] = found.product;
    params.part_match[to] = found.index;
  }
}

template <class Thread>
KVC_DEVICE void join_nearest_body(const NearestRows& params, Thread& thread) {
  const int row = thread.block_x() * thread.count() + thread.index();
  if (row >= params.rows.num_rows) {
    return;
  }
  Nearest found = no_nearest();
  for (int part = 0; part < params.num_parts; ++part) {
    const std::int64_t from = static_cast<std::int64_t>(part) * params.rows.num_rows + row;
    found = nearer(found, {params.part_product[from], params.part_match[from]});
  }
  params.product[row] = found.product;
  params.match[row] = found.index;
}

}  // namespace kvc

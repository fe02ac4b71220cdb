// nearest_rows: grid (tokens in tiles of 128, part of the others). A block goes through its part's tiles; four lanes
// find the best of the columns that they hold of a row, and keep it in shared memory, where four warps' are joined.
// join_nearest: grid (chunks of the block's threads); a thread joins one row's parts.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/row_products.h"

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
  // Halves of an index are floats without rounding.
  const float high = thread.shuffle_xor(static_cast<float>(own.index >> 16), lanes);
  const float low = thread.shuffle_xor(static_cast<float>(own.index & 0xFFFF), lanes);
  return {thread.shuffle_xor(own.product, lanes),
          static_cast<std::int32_t>(high) << 16 | static_cast<std::int32_t>(low)};
}

// Behind the tiles in shared memory: the best of each warp column and row, [4, kRows].
constexpr int kNearestSharedBytes =
    ProductTile::kSharedBytes + 4 * ProductTile::kRows * static_cast<int>(sizeof(Nearest));

// What a lane's columns `first_column` .. of a tile add to the best of its rows. Each place is one lane's.
template <class Thread>
KVC_DEVICE void add_tile(const ProductSums& sums, int first_column, int num_others, bool first,
                         Nearest* of_warps, Thread& thread) {
  using Tile = ProductTile;
  KVC_UNROLL
  for (int m = 0; m < Tile::kFragmentRows; ++m) {
    KVC_UNROLL
    for (int half = 0; half < 2; ++half) {
      Nearest own = no_nearest();
      KVC_UNROLL
      for (int n = 0; n < Tile::kFragmentColumns; ++n) {
        KVC_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int column = first_column + Tile::column_of(thread.warp(), thread.lane(), n, i);
          if (column < num_others) {
            own = nearer(own, {sums[m][n][2 * half + i], column});
          }
        }
      }
      own = nearer(own, shuffle_nearest(own, 1, thread));
      own = nearer(own, shuffle_nearest(own, 2, thread));
      if (thread.lane() % 4 == 0) {
        Nearest& best = of_warps[thread.warp() % 4 * Tile::kRows +
                                 Tile::row_of(thread.warp(), thread.lane(), m, 2 * half)];
        best = first ? own : nearer(best, own);
      }
    }
  }
}

template <class T>
struct NearestRowsKernel : Kernel<NearestRows, ProductTile::kThreads, 2> {
  static constexpr const char* kName = "nearest_rows";

  template <class Thread>
  static KVC_DEVICE void run(const NearestRows& params, Thread& thread) {
    using Tile = ProductTile;
    const int first_row = thread.block_x() * Tile::kRows, part = thread.block_y();
    const TileRange range = tiles_of_part(params.others.num_rows, params.num_parts, part);
    auto* of_warps = reinterpret_cast<Nearest*>(thread.shared() + Tile::kSharedBytes);
    for (int tile = range.first; tile < range.last; ++tile) {
      ProductSums sums;
      product_tile<T>(params.rows, first_row, params.others, tile * Tile::kColumns, sums, thread);
      add_tile(sums, tile * Tile::kColumns, params.others.num_rows, tile == range.first, of_warps,
               thread);
    }
    thread.sync();
    const int row = thread.index();
    if (row < Tile::kRows && first_row + row < params.rows.num_rows) {
      Nearest found = no_nearest();
      for (int warp = 0; warp < 4 && range.first < range.last; ++warp) {
        found = nearer(found, of_warps[warp * Tile::kRows + row]);
      }
      const std::int64_t to =
          static_cast<std::int64_t>(part) * params.rows.num_rows + first_row + row;
      params.part_product[to] = found.product;
      params.part_match[to] = found.index;
    }
  }
};

struct JoinNearestKernel : Kernel<NearestRows, 128> {
  static constexpr const char* kName = "join_nearest";

  template <class Thread>
  static KVC_DEVICE void run(const NearestRows& params, Thread& thread) {
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
};

template <class Launcher>
LaunchError launch_kernels(const NearestRows& params, const Launcher& launcher) {
  const auto fits = [](const ProductRows& rows) {
    return rows.num_parts == 1 && rows.part_width % 8 == 0 && rows.stride % 8 == 0;
  };
  if (!fits(params.rows) || !fits(params.others) ||
      params.rows.part_width != params.others.part_width || params.others.num_rows < 1) {
    return "nearest_rows: takes two matrices of equal width, a multiple of 8, and at least one row "
           "to choose";
  }
  const int rows = params.rows.num_rows;
  LaunchError error = with_type(params.element, [&](auto type) {
    return launcher.template run<NearestRowsKernel<decltype(type)>>(
        params, {divide_up(rows, ProductTile::kRows), params.num_parts}, ProductTile::kThreads,
        kNearestSharedBytes);
  });
  const int threads = launcher.threads(JoinNearestKernel::kThreads);
  return error.empty()
             ? launcher.template run<JoinNearestKernel>(params, {divide_up(rows, threads)}, threads)
             : error;
}

}  // namespace kvc

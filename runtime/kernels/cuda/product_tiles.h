// A tile of the product of two row-major matrices of 16-bit numbers, C = A B^T, on tensor cores: the common part
// of products with an epilogue of their own.
//
// A block of 256 threads computes 128 x 128 numbers, as 2 x 4 warps of 64 x 32. Slices of 32 columns of A and B
// arrive in shared memory three deep; the sum over columns is in order, so that equal inputs give equal bits.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/device_qualifiers.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// Rows whose columns lie in up to kMaxParts matrices side by side, each [num_rows, part_width] with `stride`
// numbers from a row to the next. 16-byte aligned; widths and strides are multiples of 8.
struct ProductRows {
  static constexpr int kMaxParts = 16;
  const void* parts[kMaxParts] = {};
  int num_parts = 1;
  int part_width = 0;
  std::int64_t stride = 0;
  int num_rows = 0;

  KVC_HOST_DEVICE int width() const { return num_parts * part_width; }
};

struct ProductTile {
  static constexpr int kRows = 128, kColumns = 128, kSlice = 32, kStages = 3, kThreads = 256;
  static constexpr int kWarpRows = 64, kWarpColumns = 32;
  static constexpr int kRowNumbers = kSlice + 8;  // 16 bytes more: a warp's rows meet no bank twice
  static constexpr int kStageNumbers = (kRows + kColumns) * kRowNumbers;
  static constexpr int kSharedBytes = kStages * kStageNumbers * 2;
  static_assert(kSharedBytes <= 99 * 1024, "sm_120 gives a block 99 KiB");
  static constexpr int kFragmentRows = kWarpRows / 16, kFragmentColumns = kWarpColumns / 8;

  // Where a warp's part of the tile begins.
  static KVC_HOST_DEVICE int first_row(int warp) { return warp / 4 * kWarpRows; }
  static KVC_HOST_DEVICE int first_column(int warp) { return warp % 4 * kWarpColumns; }
  // Row and column in the tile of number `i` of fragment (row, column) of a lane.
  static KVC_HOST_DEVICE int row_of(int warp, int lane, int fragment, int i) {
    return first_row(warp) + 16 * fragment + lane / 4 + 8 * (i / 2);
  }
  static KVC_HOST_DEVICE int column_of(int warp, int lane, int fragment, int i) {
    return first_column(warp) + 8 * fragment + 2 * (lane % 4) + i % 2;
  }
};

// Blocks of a product of as many rows and columns.
inline LaunchGrid product_grid(int num_rows, int num_columns) {
  return {divide_up(num_columns, ProductTile::kColumns), divide_up(num_rows, ProductTile::kRows)};
}

using ProductSums = float[ProductTile::kFragmentRows][ProductTile::kFragmentColumns][4];

// Begins to copy columns slice * 32 .. of 128 rows from `first` on into shared memory; what lies outside
// becomes zeros.
template <class Thread>
KVC_DEVICE void copy_slice(const ProductRows& rows, int first, int slice, std::uint16_t* to,
                           Thread& thread) {
  constexpr int kVectors = ProductTile::kSlice / 8;
  for (int i = thread.index(); i < ProductTile::kRows * kVectors; i += thread.count()) {
    const int row = i / kVectors, column = slice * ProductTile::kSlice + i % kVectors * 8;
    const bool valid = first + row < rows.num_rows && column < rows.width();
    const int part = valid ? column / rows.part_width : 0;
    const auto* from = static_cast<const std::uint16_t*>(rows.parts[part]) +
                       (valid ? (first + row) * rows.stride + column % rows.part_width : 0);
    thread.template copy_async<16>(to + row * ProductTile::kRowNumbers + i % kVectors * 8, from,
                                   valid);
  }
}

// sums = rows first_a .. of A times rows first_b .. of B. The block's shared memory is free again afterwards.
template <class T, class Thread>
KVC_DEVICE void product_tile(const ProductRows& a, int first_a, const ProductRows& b, int first_b,
                             ProductSums& sums, Thread& thread) {
  using Tile = ProductTile;
  auto* shared = reinterpret_cast<std::uint16_t*>(thread.shared());
  const int slices = (a.width() + Tile::kSlice - 1) / Tile::kSlice;
  const auto begin_slice = [&](int slice) {
    if (slice < slices) {
      std::uint16_t* stage = shared + slice % Tile::kStages * Tile::kStageNumbers;
      copy_slice(a, first_a, slice, stage, thread);
      copy_slice(b, first_b, slice, stage + Tile::kRows * Tile::kRowNumbers, thread);
    }
    thread.commit();
  };
  KVC_UNROLL
  for (int m = 0; m < Tile::kFragmentRows; ++m) {
    KVC_UNROLL
    for (int n = 0; n < Tile::kFragmentColumns; ++n) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        sums[m][n][i] = 0;
      }
    }
  }
  begin_slice(0);
  begin_slice(1);
  const int lane = thread.lane();
  const int first_row = Tile::first_row(thread.warp()),
            first_column = Tile::first_column(thread.warp());
  for (int slice = 0; slice < slices; ++slice) {
    thread.template wait<1>();
    thread.sync();
    begin_slice(slice + 2);  // into the stage that all have read
    const std::uint16_t* rows = shared + slice % Tile::kStages * Tile::kStageNumbers;
    const std::uint16_t* columns = rows + Tile::kRows * Tile::kRowNumbers;
    KVC_UNROLL
    for (int k = 0; k < Tile::kSlice; k += 16) {
      std::uint32_t left[Tile::kFragmentRows][4], right[Tile::kFragmentColumns / 2][4];
      KVC_UNROLL
      for (int m = 0; m < Tile::kFragmentRows; ++m) {
        thread.load_matrices(left[m], rows + (first_row + 16 * m + lane % 16) * Tile::kRowNumbers +
                                          k + 8 * (lane / 16));
      }
      KVC_UNROLL
      for (int n = 0; n < Tile::kFragmentColumns / 2; ++n) {
        const int column = first_column + 16 * n + lane % 8 + 8 * (lane / 16);
        thread.load_matrices(right[n],
                             columns + column * Tile::kRowNumbers + k + 8 * (lane / 8 % 2));
      }
      KVC_UNROLL
      for (int m = 0; m < Tile::kFragmentRows; ++m) {
        KVC_UNROLL
        for (int n = 0; n < Tile::kFragmentColumns; ++n) {
          const std::uint32_t pair[2] = {right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]};
          thread.multiply_add(T{}, sums[m][n], left[m], pair);
        }
      }
    }
  }
  thread.template wait<0>();
  thread.sync();
}

}  // namespace kvc

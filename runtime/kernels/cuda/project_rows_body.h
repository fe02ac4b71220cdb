// Grid: (latent channels in tiles of 128, tokens in tiles of 128).
#pragma once

#include "runtime/kernels/cuda/project_rows.h"

namespace kvc {

template <class T, class Thread>
KVC_DEVICE void project_rows_body(const ProjectRows& params, Thread& thread) {
  using Tile = ProductTile;
  const int rank = params.projection.num_rows;
  const int first_row = thread.block_y() * Tile::kRows,
            first_column = thread.block_x() * Tile::kColumns;
  ProductSums sums;
  product_tile<T>(params.rows, first_row, params.projection, first_column, sums, thread);
  KVC_UNROLL
  for (int m = 0; m < Tile::kFragmentRows; ++m) {
    KVC_UNROLL
    for (int n = 0; n < Tile::kFragmentColumns; ++n) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + Tile::row_of(thread.warp(), thread.lane(), m, i);
        const int column = first_column + Tile::column_of(thread.warp(), thread.lane(), n, i);
        if (row >= params.rows.num_rows || column >= rank) {
          continue;
        }
        const float h = sums[m][n][i] + (params.offset == nullptr ? 0.0f : params.offset[column]);
        const std::int64_t to = static_cast<std::int64_t>(row) * rank + column;
        if (params.output != nullptr) {
          static_cast<std::uint16_t*>(params.output)[to] =
              params.output_element == DeviceElement::kBFloat16 ? narrow_bits(BFloat16{}, h)
                                                                : narrow_bits(Float16{}, h);
        }
        if (params.output_float != nullptr) {
          params.output_float[to] = h;
        }
      }
    }
  }
}

}  // namespace kvc

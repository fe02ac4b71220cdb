// Grid: (latent channels in tiles of 128, tokens in tiles of 128).
#pragma once

#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/row_products.h"

namespace kvc {

template <class T>
struct ProjectRowsKernel : Kernel<ProjectRows, ProductTile::kThreads, 2> {
  static constexpr const char* kName = "project_rows";

  template <class Thread>
  static KVC_DEVICE void run(const ProjectRows& params, Thread& thread) {
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
            static_cast<std::uint16_t*>(params.output)[to] = narrow_bits(params.output_element, h);
          }
          if (params.output_float != nullptr) {
            params.output_float[to] = h;
          }
        }
      }
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const ProjectRows& params, const Launcher& launcher) {
  const ProductRows &rows = params.rows, &projection = params.projection;
  if (rows.num_parts < 1 || rows.num_parts > ProductRows::kMaxParts || rows.part_width % 8 != 0 ||
      rows.stride % 8 != 0 || projection.num_parts != 1 || projection.stride % 8 != 0 ||
      projection.part_width != rows.width()) {
    return "project_rows: takes 1 to 16 parts, of widths and strides that are multiples of 8, and "
           "a projection as wide";
  }
  return with_type(params.element, [&](auto type) {
    return launcher.template run<ProjectRowsKernel<decltype(type)>>(
        params, product_grid(rows.num_rows, projection.num_rows), ProductTile::kThreads,
        ProductTile::kSharedBytes);
  });
}

}  // namespace kvc

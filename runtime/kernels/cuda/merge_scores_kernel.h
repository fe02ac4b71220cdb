// lost_rows: grid (channels in tiles of 128, tokens in tiles of 128).
// join_lost: grid (chunks of the block's threads); a thread joins one token's parts.
// row_cosines: grid (rows in chunks of the block's warps); a warp takes a row.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/row_products.h"

namespace kvc {

template <class T>
KVC_HOST_DEVICE float product_number(const ProductRows& rows, int row, int column) {
  const auto* part = static_cast<const T*>(rows.parts[column / rows.part_width]);
  return to_float(part[row * rows.stride + column % rows.part_width]);
}

template <class T>
struct LostRowsKernel : Kernel<LostRows, ProductTile::kThreads, 2> {
  static constexpr const char* kName = "lost_rows";

  template <class Thread>
  static KVC_DEVICE void run(const LostRows& params, Thread& thread) {
    using Tile = ProductTile;
    const int first_row = thread.block_y() * Tile::kRows,
              first_column = thread.block_x() * Tile::kColumns;
    const int num_rows = params.latents.num_rows;
    ProductSums sums;
    product_tile<T>(params.latents, first_row, params.reconstruct, first_column, sums, thread);
    auto* lost_of_warps = reinterpret_cast<float*>(thread.shared());  // [4, kRows]
    float* energy_of_warps = lost_of_warps + 4 * Tile::kRows;         // likewise
    KVC_UNROLL
    for (int m = 0; m < Tile::kFragmentRows; ++m) {
      KVC_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int in_tile = Tile::row_of(thread.warp(), thread.lane(), m, 2 * half);
        const int row = first_row + in_tile;
        float lost = 0, energy = 0;
        KVC_UNROLL
        for (int n = 0; n < Tile::kFragmentColumns; ++n) {
          KVC_UNROLL
          for (int i = 0; i < 2; ++i) {
            const int column = first_column + Tile::column_of(thread.warp(), thread.lane(), n, i);
            if (row < num_rows && column < params.reconstruct.num_rows) {
              const float y = product_number<T>(params.exact, row, column);
              const float difference = y - sums[m][n][2 * half + i];
              lost += difference * difference;
              energy += y * y;
            }
          }
        }
        for (int lanes = 1; lanes <= 2; lanes *= 2) {
          lost += thread.shuffle_xor(lost, lanes);
          energy += thread.shuffle_xor(energy, lanes);
        }
        if (thread.lane() % 4 == 0) {
          lost_of_warps[thread.warp() % 4 * Tile::kRows + in_tile] = lost;
          energy_of_warps[thread.warp() % 4 * Tile::kRows + in_tile] = energy;
        }
      }
    }
    thread.sync();
    const int row = thread.index();
    if (row < Tile::kRows && first_row + row < num_rows) {
      float lost = 0, energy = 0;
      for (int warp = 0; warp < 4; ++warp) {
        lost += lost_of_warps[warp * Tile::kRows + row];
        energy += energy_of_warps[warp * Tile::kRows + row];
      }
      const std::int64_t to =
          static_cast<std::int64_t>(thread.block_x()) * num_rows + first_row + row;
      params.part_lost[to] = lost;
      params.part_energy[to] = energy;
    }
  }
};

struct JoinLostKernel : Kernel<LostRows, 128> {
  static constexpr const char* kName = "join_lost";

  template <class Thread>
  static KVC_DEVICE void run(const LostRows& params, Thread& thread) {
    const int row = thread.block_x() * thread.count() + thread.index();
    const int num_rows = params.latents.num_rows;
    if (row >= num_rows) {
      return;
    }
    const int parts =
        (params.reconstruct.num_rows + ProductTile::kColumns - 1) / ProductTile::kColumns;
    float lost = 0, energy = 0;
    for (int part = 0; part < parts; ++part) {
      const std::int64_t from = static_cast<std::int64_t>(part) * num_rows + row;
      lost += params.part_lost[from];
      energy += params.part_energy[from];
    }
    params.scores[row] = -(lost / (energy > 1e-30f ? energy : 1e-30f));
  }
};

template <class T>
struct RowCosinesKernel : Kernel<RowCosines, 128> {
  static constexpr const char* kName = "row_cosines";

  template <class Thread>
  static KVC_DEVICE void run(const RowCosines& params, Thread& thread) {
    const int row = thread.block_x() * (thread.count() / 32) + thread.warp();
    if (row >= params.num_rows) {
      return;
    }
    const T* a = static_cast<const T*>(params.a) + static_cast<std::int64_t>(row) * params.width;
    const T* b = static_cast<const T*>(params.b) + static_cast<std::int64_t>(row) * params.width;
    float product = 0, left = 0, right = 0;
    for (int i = thread.lane(); i < params.width; i += 32) {
      const float x = to_float(a[i]), y = to_float(b[i]);
      product += x * y;
      left += x * x;
      right += y * y;
    }
    product = warp_sum(thread, product);
    left = warp_sum(thread, left);
    right = warp_sum(thread, right);
    if (thread.lane() == 0) {
      const float norms = sqrtf(left) * sqrtf(right);
      params.cosines[row] = product / (norms > 1e-30f ? norms : 1e-30f);
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const LostRows& params, const Launcher& launcher) {
  const ProductRows &h = params.latents, &b = params.reconstruct;
  if (h.num_parts != 1 || b.num_parts != 1 || h.part_width != b.part_width ||
      h.part_width % 8 != 0 || h.stride % 8 != 0 || b.stride % 8 != 0 ||
      params.exact.width() != b.num_rows) {
    return "lost_rows: takes latents and a reconstruction of one rank, a multiple of 8, and as "
           "many exact channels as are rebuilt";
  }
  LaunchError error = with_type(params.element, [&](auto type) {
    return launcher.template run<LostRowsKernel<decltype(type)>>(
        params, product_grid(h.num_rows, b.num_rows), ProductTile::kThreads,
        ProductTile::kSharedBytes);
  });
  const int threads = launcher.threads(JoinLostKernel::kThreads);
  return error.empty() ? launcher.template run<JoinLostKernel>(
                             params, {divide_up(h.num_rows, threads)}, threads)
                       : error;
}

template <class Launcher>
LaunchError launch_kernels(const RowCosines& params, const Launcher& launcher) {
  return with_type(params.element, [&](auto type) {
    using Instance = RowCosinesKernel<decltype(type)>;
    const int threads = launcher.threads(Instance::kThreads);
    return launcher.template run<Instance>(params, {divide_up(params.num_rows, threads / 32)},
                                           threads);
  });
}

}  // namespace kvc

// Grid: 16 outputs, or 32 (few_rows_product_tiles.h). A block's warps share the columns, 32 at a time each in turn. The
// warps' sums are added in their order, so that what a row becomes does not depend on the others.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/few_rows_product_tiles.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

constexpr int kProductWarps = 8;

KVC_HOST_DEVICE float activated(DeviceActivation activation, float x) {
  switch (activation) {
    case DeviceActivation::kSilu:
      return x / (1.0f + expf(-x));
    case DeviceActivation::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case DeviceActivation::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    default:
      return x;
  }
}

KVC_HOST_DEVICE void write_product(const FewRowsProduct& params, int row, int output, float y) {
  y *= params.scale;
  if (params.softcap != 0) {
    y = params.softcap * tanhf(y / params.softcap);
  }
  const std::int64_t to = static_cast<std::int64_t>(row) * params.out + output;
  if (params.residual != nullptr) {
    params.residual[to] += y;
  }
  if (params.output != nullptr) {
    static_cast<std::uint16_t*>(params.output)[to] = narrow_bits(params.element, y);
  }
  if (params.output_float != nullptr) {
    params.output_float[to] = y;
  }
}

// Three blocks a multiprocessor where the compiler would otherwise save registers by waiting between loads (H200: 12 % less
// time for 14336 columns of one row).
template <class T, bool kCodes, bool kGated, int kTilesOfX>
struct FewRowsProductKernel
    : Kernel<FewRowsProduct, 32 * kProductWarps, (kTilesOfX == 1 && !kGated && !kCodes ? 3 : 0)> {
  static constexpr const char* kName = "few_rows_product";
  using Tiles = ProductTiles<kGated, kTilesOfX>;

  template <class Thread>
  static KVC_DEVICE void run(const FewRowsProduct& params, Thread& thread) {
    constexpr int kDepth = 4 / Tiles::kOfWeights;  // blocks whose loads are under way together
    const int warps = thread.count() / 32;
    const int blocks = weight_groups(params.in);
    const ProductPlaces<kCodes, Tiles> places(thread, params);
    float sums[Tiles::kOfWeights][Tiles::kOfX][4] = {};
    WeightBlock<kCodes, Tiles> weights[kDepth];
    std::uint32_t x[kDepth][Tiles::kOfX][4];
    const auto load_weights = [&](int block) {
      KVC_UNROLL
      for (int i = 0; i < kDepth; ++i) {
        places.load_weights(thread, params, block + i * warps, weights[i]);
      }
    };
    // With several tiles of rows all weights come before them (H200: a step of 16 sequences takes 0.85 of the time).
    constexpr bool kWeightsFirst = kTilesOfX > 1 && !kCodes;
    if constexpr (kWeightsFirst) {
      load_weights(thread.warp());
    }
    for (int block = thread.warp(); block < blocks; block += kDepth * warps) {
      if (kWeightsFirst && block >= kDepth * warps) {
        load_weights(block);
      }
      KVC_UNROLL
      for (int i = 0; i < kDepth; ++i) {  // behind the last column all are zeros
        if constexpr (!kWeightsFirst) {
          places.load_weights(thread, params, block + i * warps, weights[i]);
        }
        places.load_x(thread, params, block + i * warps, x[i]);
      }
      KVC_UNROLL
      for (int i = 0; i < kDepth; ++i) {
        add_products<T>(thread, weights[i], x[i], sums);
      }
    }
    share_sums(thread, sums);
    thread.sync();
    for (int i = thread.index(); i < Tiles::kOfOutputs * Tiles::kOfX * Tiles::kSums;
         i += thread.count()) {
      write_sum(params, thread, i / Tiles::kSums, i % Tiles::kSums);
    }
  }

 private:
  // Where a warp has number i of the sums [16 outputs, 8 rows] of two tiles in shared memory.
  static KVC_DEVICE int place_of_sum(int warp, int tile, int of_x, int i) {
    return ((warp * Tiles::kOfWeights + tile) * Tiles::kOfX + of_x) * Tiles::kSums + i;
  }

  template <class Thread>
  static KVC_DEVICE void share_sums(Thread& thread,
                                    const float (&sums)[Tiles::kOfWeights][Tiles::kOfX][4]) {
    auto* shared = reinterpret_cast<float*>(thread.shared());
    const int lane = thread.lane();
    KVC_UNROLL
    for (int tile = 0; tile < Tiles::kOfWeights; ++tile) {
      KVC_UNROLL
      for (int of_x = 0; of_x < Tiles::kOfX; ++of_x) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int output = lane / 4 + 8 * (i / 2), row = 2 * (lane % 4) + i % 2;
          shared[place_of_sum(thread.warp(), tile, of_x, output * kProductRows + row)] =
              sums[tile][of_x][i];
        }
      }
    }
  }

  // Number i of a pair of tiles, one of them of outputs.
  template <class Thread>
  static KVC_DEVICE void write_sum(const FewRowsProduct& params, Thread& thread, int pair, int i) {
    const int of_x = pair % Tiles::kOfX, of_outputs = pair / Tiles::kOfX;
    const int output = thread.block_x() * Tiles::kOutputs + of_outputs * kProductOutputs +
                       i / kProductRows,
              row = of_x * kProductRows + i % kProductRows;
    if (row >= params.num_rows || output >= params.out) {
      return;
    }
    const auto* shared = reinterpret_cast<const float*>(thread.shared());
    float y[2] = {};
    KVC_UNROLL
    for (int matrix = 0; matrix < Tiles::kMatrices; ++matrix) {
      for (int warp = 0; warp < thread.count() / 32; ++warp) {
        y[matrix] += shared[place_of_sum(warp, matrix * Tiles::kOfOutputs + of_outputs, of_x, i)];
      }
      y[matrix] += params.bias == nullptr ? 0.0f : params.bias[matrix * params.out + output];
    }
    const float gate = activated(params.activation, y[0]);
    write_product(params, row, output, kGated ? gate * y[1] : gate);
  }
};

template <class Launcher>
LaunchError launch_kernels(const FewRowsProduct& params, const Launcher& launcher) {
  if (LaunchError error = check_few_rows_product(params); !error.empty()) {
    return error;
  }
  const int tiles_of_x = params.num_rows <= kProductRows       ? 1
                         : params.num_rows <= 2 * kProductRows ? 2
                                                               : 4;
  return with_type(params.element, [&](auto type) {
    return with_flag(params.scales != nullptr, [&](auto codes) {
      return with_flag(params.gated, [&](auto gated) {
        return with_number<1, 2, 4>(tiles_of_x, [&](auto tiles) {
          using Instance = FewRowsProductKernel<decltype(type), decltype(codes)::value,
                                                decltype(gated)::value, decltype(tiles)::value>;
          const int threads = launcher.threads(Instance::kThreads);
          return launcher.template run<Instance>(
              params, {divide_up(params.out, Instance::Tiles::kOutputs)}, threads,
              Instance::Tiles::shared_bytes(threads / 32));
        });
      });
    });
  });
}

}  // namespace kvc

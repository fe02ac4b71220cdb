// Tiles of weights and of a few rows, as a product's lanes load and multiply them. Weights are the rows of tensor-core
// products and the few rows their columns, eight a tile: which columns of W a product takes is free, as long as x's are the
// same, so that a lane reads 8 neighbours of a weight's row, and of a row of x, at once, without shared memory.
#pragma once

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/few_rows_product.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

constexpr int kProductOutputs = 16;  // rows of a tensor-core product
constexpr int kProductRows = 8;      // its columns

// What a block multiplies: tiles of 16 weights' rows with tiles of eight rows of x. With more than one of the latter it
// takes twice the outputs, as its rows of x come from L2 for every block; a gate and what it gates are two already.
template <bool kIsGated, int kTilesOfX>
struct ProductTiles {
  static constexpr int kMatrices = kIsGated ? 2 : 1, kOfX = kTilesOfX;
  static constexpr int kOfOutputs = kTilesOfX > 1 && !kIsGated ? 2 : 1;  // of a matrix
  static constexpr int kOfWeights = kMatrices * kOfOutputs;
  static constexpr int kOutputs = kOfOutputs * kProductOutputs;
  static constexpr int kSums = kProductOutputs * kProductRows;  // of two tiles
  static constexpr int shared_bytes(int warps) {
    return warps * kOfWeights * kOfX * kSums * static_cast<int>(sizeof(float));
  }
};

KVC_HOST_DEVICE int weight_groups(int in) {
  return (in + kWeightScaleGroup - 1) / kWeightScaleGroup;
}

// Four int8 codes as two pairs of exact 16-bit numbers.
template <class T>
KVC_HOST_DEVICE void widen_codes(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
  const auto number = [&](int i) {
    return static_cast<float>(static_cast<std::int8_t>(codes >> (8 * i) & 0xFF));
  };
  low = pack_pair<T>(number(0), number(1));
  high = pack_pair<T>(number(2), number(3));
}

// 32 columns of a block's weights: of a lane, 8 neighbouring ones of rows lane / 4 and lane / 4 + 8 of every tile.
template <bool kCodes, class Tiles>
struct WeightBlock {
  static constexpr int kWords = kCodes ? 2 : 4;
  std::uint32_t words[Tiles::kOfWeights][2][kWords];
  float scales[Tiles::kOfWeights][2];  // of codes
};

// Where a lane's rows lie. Loads have no conditions, so that many are under way: outputs behind the last are the last
// one, and are not written; columns behind the last are some others, which x's zeros meet.
template <bool kCodes, class Tiles>
struct ProductPlaces {
  using Block = WeightBlock<kCodes, Tiles>;
  const std::uint8_t* weights[Tiles::kOfWeights][2];
  const Float16* scales[Tiles::kOfWeights][2];
  const std::uint16_t* x;  // of the lane's row of the first tile, or of the first row
  bool has_x[Tiles::kOfX];

  template <class Thread>
  KVC_DEVICE ProductPlaces(Thread& thread, const FewRowsProduct& params) {
    const int lane = thread.lane(), groups = weight_groups(params.in);
    const int columns = kCodes ? kWeightScaleGroup * groups : params.in;
    KVC_UNROLL
    for (int tile = 0; tile < Tiles::kOfWeights; ++tile) {
      const int matrix = tile / Tiles::kOfOutputs, of_outputs = tile % Tiles::kOfOutputs;
      KVC_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int output =
            thread.block_x() * Tiles::kOutputs + of_outputs * kProductOutputs + lane / 4 + 8 * half;
        const std::int64_t row = static_cast<std::int64_t>(matrix) * params.out +
                                 (output < params.out ? output : params.out - 1);
        weights[tile][half] =
            static_cast<const std::uint8_t*>(params.weight) + (kCodes ? 1 : 2) * row * columns;
        scales[tile][half] = static_cast<const Float16*>(params.scales) + row * groups;
      }
    }
    KVC_UNROLL
    for (int tile = 0; tile < Tiles::kOfX; ++tile) {
      has_x[tile] = tile * kProductRows + lane / 4 < params.num_rows;
    }
    x = static_cast<const std::uint16_t*>(params.x) +
        static_cast<std::int64_t>(has_x[0] ? lane / 4 : 0) * params.in;
  }

  // Columns 32 * block + 8 * (lane % 4) .. + 7 of the weights.
  template <class Thread>
  KVC_DEVICE void load_weights(Thread& thread, const FewRowsProduct& params, int block,
                               Block& to) const {
    const int column = 32 * block + 8 * (thread.lane() % 4);
    const int last = kCodes ? kWeightScaleGroup * weight_groups(params.in) - 8 : params.in - 8;
    const int from = column < last ? column : last;
    KVC_UNROLL
    for (int tile = 0; tile < Tiles::kOfWeights; ++tile) {
      KVC_UNROLL
      for (int half = 0; half < 2; ++half) {
        thread.load_once(to.words[tile][half], weights[tile][half] + (kCodes ? 1 : 2) * from);
        if constexpr (kCodes) {
          to.scales[tile][half] = to_float(scales[tile][half][from / kWeightScaleGroup]);
        }
      }
    }
  }

  // The same of row lane / 4 of every tile of x.
  template <class Thread>
  KVC_DEVICE void load_x(Thread& thread, const FewRowsProduct& params, int block,
                         std::uint32_t (&of_x)[Tiles::kOfX][4]) const {
    const int column = 32 * block + 8 * (thread.lane() % 4);
    KVC_UNROLL
    for (int tile = 0; tile < Tiles::kOfX; ++tile) {
      const bool valid = has_x[tile] && column < params.in;
      thread.load_words(of_x[tile], x + (valid ? tile * kProductRows * params.in + column : 0));
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        of_x[tile][i] = valid ? of_x[tile][i] : 0;
      }
    }
  }
};

// A tile of weights meets every tile of x.
template <class T, bool kCodes, class Tiles, class Thread>
KVC_DEVICE void add_products(Thread& thread, const WeightBlock<kCodes, Tiles>& weights,
                             const std::uint32_t (&x)[Tiles::kOfX][4],
                             float (&sums)[Tiles::kOfWeights][Tiles::kOfX][4]) {
  KVC_UNROLL
  for (int tile = 0; tile < Tiles::kOfWeights; ++tile) {
    std::uint32_t first[4], second[4];  // of rows lane / 4 and lane / 4 + 8
    if constexpr (kCodes) {
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        widen_codes<T>(weights.words[tile][0][i], first[2 * i], first[2 * i + 1]);
        widen_codes<T>(weights.words[tile][1][i], second[2 * i], second[2 * i + 1]);
      }
    } else {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        first[i] = weights.words[tile][0][i];
        second[i] = weights.words[tile][1][i];
      }
    }
    KVC_UNROLL
    for (int of_x = 0; of_x < Tiles::kOfX; ++of_x) {
      float of_block[4] = {};
      float(&to)[4] = kCodes ? of_block : sums[tile][of_x];
      KVC_UNROLL
      for (int i = 0; i < 4; i += 2) {
        const std::uint32_t a[4] = {first[i], second[i], first[i + 1], second[i + 1]};
        const std::uint32_t b[2] = {x[of_x][i], x[of_x][i + 1]};
        thread.multiply_add(T{}, to, a, b);
      }
      if constexpr (kCodes) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          sums[tile][of_x][i] += weights.scales[tile][i / 2] * of_block[i];
        }
      }
    }
  }
}

}  // namespace kvc

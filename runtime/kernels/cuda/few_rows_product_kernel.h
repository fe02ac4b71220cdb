// Grid: tiles of 16 outputs. A block's warps share the columns, 32 at a time each in turn. Weights are the rows of
// tensor-core products and the few rows their columns: which columns of W a product takes is free, as long as x's
// are the same, so that a lane reads 8 neighbours of a weight's row, and of a row of x, at once, without shared memory.
// The warps' sums are added in their order.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/few_rows_product.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

constexpr int kProductOutputs = 16;
constexpr int kProductWarps = 8;

struct FewRowsShared {
  static constexpr int kWarpSums = kProductOutputs * kMostFewRows;
  static constexpr int bytes(int warps, bool gated) {
    return warps * (gated ? 2 : 1) * kWarpSums * static_cast<int>(sizeof(float));
  }
};

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

// 32 columns of a tile's weights: of a lane, 8 neighbouring ones of rows lane / 4 and lane / 4 + 8.
template <bool kCodes, bool kGated>
struct WeightBlock {
  static constexpr int kWords = kCodes ? 2 : 4, kMatrices = kGated ? 2 : 1;
  std::uint32_t words[kMatrices][2][kWords];
  float scales[kMatrices][2];  // of codes
};

// Where a lane's rows lie. Loads have no conditions, so that many are under way: outputs behind the last are the last
// one, and are not written; columns behind the last are some others, which x's zeros meet.
template <bool kCodes, bool kGated>
struct ProductPlaces {
  using Block = WeightBlock<kCodes, kGated>;
  const std::uint8_t* weights[Block::kMatrices][2];
  const Float16* scales[Block::kMatrices][2];
  const std::uint16_t* x;
  bool has_x;

  template <class Thread>
  KVC_DEVICE ProductPlaces(Thread& thread, const FewRowsProduct& params) {
    const int lane = thread.lane(), groups = weight_groups(params.in);
    const int columns = kCodes ? kWeightScaleGroup * groups : params.in;
    KVC_UNROLL
    for (int matrix = 0; matrix < Block::kMatrices; ++matrix) {
      KVC_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int output = thread.block_x() * kProductOutputs + lane / 4 + 8 * half;
        const std::int64_t row = static_cast<std::int64_t>(matrix) * params.out +
                                 (output < params.out ? output : params.out - 1);
        weights[matrix][half] =
            static_cast<const std::uint8_t*>(params.weight) + (kCodes ? 1 : 2) * row * columns;
        scales[matrix][half] = static_cast<const Float16*>(params.scales) + row * groups;
      }
    }
    has_x = lane / 4 < params.num_rows;
    x = static_cast<const std::uint16_t*>(params.x) +
        static_cast<std::int64_t>(has_x ? lane / 4 : 0) * params.in;
  }

  // Columns 32 * block + 8 * (lane % 4) .. + 7 of the weights and of row lane / 4 of x.
  template <class Thread>
  KVC_DEVICE void load(Thread& thread, const FewRowsProduct& params, int block, Block& to,
                       std::uint32_t (&of_x)[4]) const {
    const int column = 32 * block + 8 * (thread.lane() % 4);
    const int last = kCodes ? kWeightScaleGroup * weight_groups(params.in) - 8 : params.in - 8;
    const int from = column < last ? column : last;
    KVC_UNROLL
    for (int matrix = 0; matrix < Block::kMatrices; ++matrix) {
      KVC_UNROLL
      for (int half = 0; half < 2; ++half) {
        thread.load_once(to.words[matrix][half], weights[matrix][half] + (kCodes ? 1 : 2) * from);
        if constexpr (kCodes) {
          to.scales[matrix][half] = to_float(scales[matrix][half][from / kWeightScaleGroup]);
        }
      }
    }
    const bool valid = has_x && column < params.in;
    thread.load_words(of_x, x + (valid ? column : 0));
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      of_x[i] = valid ? of_x[i] : 0;
    }
  }
};

template <class T, bool kCodes, bool kGated, class Thread>
KVC_DEVICE void add_products(Thread& thread, const WeightBlock<kCodes, kGated>& weights,
                             const std::uint32_t (&x)[4],
                             float (&sums)[WeightBlock<kCodes, kGated>::kMatrices][4]) {
  KVC_UNROLL
  for (int matrix = 0; matrix < WeightBlock<kCodes, kGated>::kMatrices; ++matrix) {
    std::uint32_t first[4], second[4];  // of rows lane / 4 and lane / 4 + 8
    if constexpr (kCodes) {
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        widen_codes<T>(weights.words[matrix][0][i], first[2 * i], first[2 * i + 1]);
        widen_codes<T>(weights.words[matrix][1][i], second[2 * i], second[2 * i + 1]);
      }
    } else {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        first[i] = weights.words[matrix][0][i];
        second[i] = weights.words[matrix][1][i];
      }
    }
    float of_block[4] = {};
    float(&to)[4] = kCodes ? of_block : sums[matrix];
    KVC_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const std::uint32_t a[4] = {first[i], second[i], first[i + 1], second[i + 1]};
      const std::uint32_t b[2] = {x[i], x[i + 1]};
      thread.multiply_add(T{}, to, a, b);
    }
    if constexpr (kCodes) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        sums[matrix][i] += weights.scales[matrix][i / 2] * of_block[i];
      }
    }
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

template <class T, bool kCodes, bool kGated>
struct FewRowsProductKernel : Kernel<FewRowsProduct, 32 * kProductWarps> {
  static constexpr const char* kName = "few_rows_product";

  template <class Thread>
  static KVC_DEVICE void run(const FewRowsProduct& params, Thread& thread) {
    using Block = WeightBlock<kCodes, kGated>;
    constexpr int kDepth = kGated ? 2 : 4;  // blocks whose loads are under way together
    const int warps = thread.count() / 32, lane = thread.lane();
    const int blocks = weight_groups(params.in);
    const ProductPlaces<kCodes, kGated> places(thread, params);
    float sums[Block::kMatrices][4] = {};
    for (int block = thread.warp(); block < blocks; block += kDepth * warps) {
      Block weights[kDepth];
      std::uint32_t x[kDepth][4];
      KVC_UNROLL
      for (int i = 0; i < kDepth; ++i) {  // behind the last column all are zeros
        places.load(thread, params, block + i * warps, weights[i], x[i]);
      }
      KVC_UNROLL
      for (int i = 0; i < kDepth; ++i) {
        add_products<T>(thread, weights[i], x[i], sums);
      }
    }
    auto* shared = reinterpret_cast<float*>(thread.shared());  // [warps, matrices, outputs, rows]
    KVC_UNROLL
    for (int matrix = 0; matrix < Block::kMatrices; ++matrix) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int output = lane / 4 + 8 * (i / 2), row = 2 * (lane % 4) + i % 2;
        shared[((thread.warp() * Block::kMatrices + matrix) * kProductOutputs + output) *
                   kMostFewRows +
               row] = sums[matrix][i];
      }
    }
    thread.sync();
    for (int i = thread.index(); i < FewRowsShared::kWarpSums; i += thread.count()) {
      const int output = thread.block_x() * kProductOutputs + i / kMostFewRows,
                row = i % kMostFewRows;
      if (row >= params.num_rows || output >= params.out) {
        continue;
      }
      float y[2] = {};
      KVC_UNROLL
      for (int matrix = 0; matrix < Block::kMatrices; ++matrix) {
        for (int warp = 0; warp < warps; ++warp) {
          y[matrix] += shared[(warp * Block::kMatrices + matrix) * FewRowsShared::kWarpSums + i];
        }
        y[matrix] += params.bias == nullptr ? 0.0f : params.bias[matrix * params.out + output];
      }
      const float gate = activated(params.activation, y[0]);
      write_product(params, row, output, kGated ? gate * y[1] : gate);
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const FewRowsProduct& params, const Launcher& launcher) {
  if (LaunchError error = check_few_rows_product(params); !error.empty()) {
    return error;
  }
  return with_type(params.element, [&](auto type) {
    return with_flag(params.scales != nullptr, [&](auto codes) {
      return with_flag(params.gated, [&](auto gated) {
        using Instance =
            FewRowsProductKernel<decltype(type), decltype(codes)::value, decltype(gated)::value>;
        const int threads = launcher.threads(Instance::kThreads);
        return launcher.template run<Instance>(params, {divide_up(params.out, kProductOutputs)},
                                               threads,
                                               FewRowsShared::bytes(threads / 32, params.gated));
      });
    });
  });
}

}  // namespace kvc

// Values that are codes, as fragments of products: decoded and rounded in registers, straight from a warp's tile of codes.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/attention_rows.h"
#include "runtime/kernels/cuda/attention_tiles.h"
#include "runtime/kernels/cuda/attention_warps.h"

namespace kvc {

// What makes numbers of the codes of two tokens' two channels: [token][channel]. minimum: minimum_below_base()
struct PairScales {
  float scale[2][2], minimum[2][2];
};

// Those of channels 16 m + 2 (lane / 4) and the next, and of tokens token and token + 1.
template <int kHeadDim, CodeForm kForm>
KVC_DEVICE PairScales pair_scales(const std::uint8_t* tile, int m, int token, int lane) {
  const auto* words =
      reinterpret_cast<const std::uint32_t*>(tile + CodeTileShape<kHeadDim>::kScales);
  PairScales scales;
  KVC_UNROLL
  for (int t = 0; t < 2; ++t) {
    if (kForm == CodeForm::kPerChannel) {
      const int at = 8 * m + lane / 4;
      const std::uint32_t scale = words[at], minimum = words[kHeadDim / 2 + at];
      scales.scale[t][0] = low_of_pair<Float16>(scale);
      scales.scale[t][1] = high_of_pair<Float16>(scale);
      scales.minimum[t][0] = minimum_below_base(scales.scale[t][0], low_of_pair<Float16>(minimum));
      scales.minimum[t][1] = minimum_below_base(scales.scale[t][1], high_of_pair<Float16>(minimum));
    } else {
      const std::uint32_t both = words[(token + t) * (kHeadDim / kScaledChannels) + m / 2];
      scales.scale[t][0] = scales.scale[t][1] = low_of_pair<Float16>(both);
      scales.minimum[t][0] = scales.minimum[t][1] =
          minimum_below_base(scales.scale[t][0], high_of_pair<Float16>(both));
    }
  }
  return scales;
}

// Left sides of products: of 32 tokens, channels 16 m .. 16 m + 15 in coded_channel()'s order.
template <class T, CodeForm kForm, int kHeadDim, class Thread>
KVC_DEVICE void value_fragments(Thread& thread, const DeviceRows& rows, const std::uint8_t* tile,
                                int m, std::uint32_t (&a)[2][4]) {
  const int lane = thread.lane();
  const bool is_int4 = kForm != CodeForm::kFloat8 && rows.element == DeviceElement::kInt4;
  // Bytes of channels 2 (lane / 4) and the next, of tokens 8 i + 2 (lane % 4) and then of the next.
  std::uint32_t codes[4];
  thread.load_matrices_transposed(
      codes, tile + lane * CodeTileShape<kHeadDim>::kRowBytes + (is_int4 ? 16 * (m / 2) : 16 * m));
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    float x[2][2];
    if constexpr (kForm == CodeForm::kFloat8) {
      float numbers[4];
      float8_to_floats(codes[i], rows.scale, numbers);
      x[0][0] = numbers[0], x[0][1] = numbers[1], x[1][0] = numbers[2], x[1][1] = numbers[3];
    } else {
      const std::uint32_t bytes = is_int4 ? codes[i] >> (4 * (m % 2)) & 0x0F0F0F0Fu : codes[i];
      const PairScales scales = pair_scales<kHeadDim, kForm>(tile, m, 8 * i + 2 * (lane % 4), lane);
      KVC_UNROLL
      for (int j = 0; j < 4; ++j) {
        x[j / 2][j % 2] =
            scales.minimum[j / 2][j % 2] + scales.scale[j / 2][j % 2] * byte_above_base(bytes, j);
      }
    }
    a[i / 2][2 * (i % 2)] = pack_pair<T>(x[0][0], x[1][0]);
    a[i / 2][2 * (i % 2) + 1] = pack_pair<T>(x[0][1], x[1][1]);
  }
}

// sums = factor * sums + values^T weights; tile: of codes.
template <class T, int kHeadDim, int kQueryTiles, class Thread>
KVC_DEVICE void add_code_values(Thread& thread, const DeviceRows& rows, const std::uint8_t* tile,
                                const WeightFragments<kQueryTiles>& weights,
                                const RaiseFactors<kQueryTiles>& raised,
                                ValueSums<kHeadDim, kQueryTiles>& sums) {
  with_code_form(rows, [&](auto form) {
    KVC_UNROLL
    for (int m = 0; m < kHeadDim / 16; ++m) {
      std::uint32_t a[2][4];
      value_fragments<T, decltype(form)::value, kHeadDim>(thread, rows, tile, m, a);
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        raise_sums(raised, n, sums.c[m][n]);
        KVC_UNROLL
        for (int k = 0; k < 2; ++k) {
          thread.multiply_add(T{}, sums.c[m][n], a[k], weights.b[k][n]);
        }
      }
    }
  });
}

}  // namespace kvc

// What a warp of dense attention multiplies: queries, and tiles of keys and values.
#pragma once

#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_rows.h"
#include "runtime/kernels/cuda/attention_tiles.h"

namespace kvc {

// The query heads of a KV head, times a fused layer's key factors.
template <class T, int kHeadDim, int kQueryTiles, class Thread>
KVC_DEVICE void load_query(Thread& thread, const DenseAttention& params, const float* key_factor,
                           QueryFragments<kHeadDim, kQueryTiles>& query) {
  const int group = params.num_heads / params.num_kv_heads, kv_head = thread.block_y();
  const std::int64_t first_head =
      static_cast<std::int64_t>(thread.block_z()) * params.num_heads + kv_head * group;
  const auto* heads = static_cast<const T*>(params.query) + first_head * kHeadDim;
  KVC_UNROLL
  for (int k = 0; k < kHeadDim / 16; ++k) {
    KVC_UNROLL
    for (int n = 0; n < kQueryTiles; ++n) {
      const int head = 8 * n + thread.lane() / 4;
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int channel = 16 * k + 8 * i + 2 * (thread.lane() % 4);
        float x[2] = {0, 0};
        if (head < group) {
          KVC_UNROLL
          for (int j = 0; j < 2; ++j) {
            x[j] = to_float(heads[head * kHeadDim + channel + j]) *
                   (key_factor == nullptr ? 1.0f : key_factor[kv_head * kHeadDim + channel + j]);
          }
        }
        query.b[k][n][i] = pack_pair<T>(x[0], x[1]);
      }
    }
  }
}

// Starts the copies of one tile of a source's keys or values.
template <int kHeadDim, bool kCodes, class Thread>
KVC_DEVICE void copy_tile(Thread& thread, const DeviceRows& rows, int tile, int last,
                          std::uint8_t* to) {
  const int channel = thread.block_y() * kHeadDim, count = last - tile * kTileRows;
  if constexpr (kCodes) {
    copy_codes<kHeadDim>(thread, rows, thread.block_z(), tile, channel, count, to);
  } else {
    copy_numbers<kHeadDim>(thread, rows, thread.block_z(), tile, channel, count,
                           reinterpret_cast<std::uint16_t*>(to));
  }
}

}  // namespace kvc

// What a block of dense attention keeps in shared memory.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/attention_dense_keys.h"
#include "runtime/kernels/cuda/attention_warps.h"

namespace kvc {

// A block's shared memory: of codes, the queries of every source, cosines and sines of the distances in a tile (with no rotary
// pairs that are turned by distances: none); then every warp's ring.
template <int kHeadDim, int kQueryTiles, int kSources, bool kCodes>
struct DenseShared {
  static constexpr int kStages = 2;
  static constexpr int kTileBytes =
      kCodes ? CodeTileShape<kHeadDim>::kBytes : 2 * kTileRows * (kHeadDim + kPadding);
  static constexpr int kTilesBytes = 2 * kSources * kTileBytes;  // keys and values
  static constexpr int kDistances = kCodes ? kSources * query_bytes<kHeadDim>(kQueryTiles) : 0;
  static KVC_HOST_DEVICE constexpr int rings(int pairs) {
    return kDistances + (pairs > 0 ? 2 * kTileRows * distance_stride(pairs) * 4 : 0);
  }
  // A stage has tiles, and cosines and sines of their first token.
  static KVC_HOST_DEVICE constexpr int stage_bytes(int pairs) {
    return kTilesBytes + (8 * pairs + 15) / 16 * 16;
  }
  static KVC_HOST_DEVICE constexpr int warp_bytes(int pairs) {
    return kStages * stage_bytes(pairs);
  }
  static constexpr int bytes(int warps, int pairs) {
    const int merge = merge_bytes(warps, kQueryTiles, kSources * kHeadDim);
    const int own = rings(pairs) + warps * warp_bytes(pairs);
    return own > merge ? own : merge;
  }
};

template <int kHeadDim, int kQueryTiles, class Thread>
KVC_DEVICE std::uint32_t* query_slots(const Thread& thread, int source) {
  return reinterpret_cast<std::uint32_t*>(thread.shared() +
                                          source * query_bytes<kHeadDim>(kQueryTiles));
}

// Rotary pairs that are turned by distances: of raw keys at positions that follow each other.
template <bool kCodes>
KVC_HOST_DEVICE int distance_pairs(const DenseAttention& params) {
  const bool raw = params.rows[0].raw_key || (params.num_sources == 2 && params.rows[1].raw_key);
  return kCodes && raw && params.positions == nullptr ? params.raw_keys.rope.num_pairs : 0;
}

}  // namespace kvc

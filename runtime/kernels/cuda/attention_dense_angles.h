// Cosines and sines of a tile of raw keys, and their rotation.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_rows.h"
#include "runtime/kernels/cuda/attention_tiles.h"

namespace kvc {

// Cosines and sines that turn a tile's raw keys. Without positions they are those of the tile's first token and of the distances
// 0 .. 31 from it, which all tiles share; the two rotations follow each other.
struct TileAngles {
  int distances = 0;  // [2, 32, distance_stride()] float, bytes from the shared memory's begin
  int base = 0;       // [2, num_pairs] float, likewise; 0: from global memory by position
  int rows[4] = {};   // of positions, of the lane's tokens: [2 m + half]
};

// Numbers of a row, which lie so that lanes of different tokens meet no bank twice.
KVC_HOST_DEVICE constexpr int distance_stride(int num_pairs) {
  return (num_pairs + 31) / 32 * 32 + 16;
}

// Cosines and sines of distances, by all threads. last: the last position that there is
template <class Thread>
KVC_DEVICE void load_distances(Thread& thread, const DeviceRope& rope, int last, float* to) {
  const int stride = distance_stride(rope.num_pairs);
  const float scale = 1.0f / rope.cos[0];  // cosines of 0, where all angles have a factor
  for (int i = thread.index(); i < kTileRows * rope.num_pairs; i += thread.count()) {
    const int row = i / rope.num_pairs, pair = i % rope.num_pairs;
    const int at = (row < last ? row : last) * rope.num_pairs + pair;
    to[row * stride + pair] = rope.cos[at] * scale;
    to[(kTileRows + row) * stride + pair] = rope.sin[at] * scale;
  }
}

// Those of a tile. pairs: that distances turn, or 0; base: where the first token's are
template <class Thread>
KVC_DEVICE TileAngles tile_angles(const Thread& thread, const DenseAttention& params, int pairs,
                                  int distances, int base, int tile, int last_row) {
  TileAngles angles;
  if (pairs > 0) {
    angles.distances = distances;
    angles.base = base;
    return angles;
  }
  KVC_UNROLL
  for (int k = 0; k < 4; ++k) {
    const int token = tile * kTileRows + RowTokens::token(k / 2, k % 2, thread.lane());
    const int row = token < last_row ? token : last_row - 1;
    angles.rows[k] = params.positions == nullptr
                         ? params.first_position + row
                         : params.positions[thread.block_z() * params.positions_stride + row];
  }
  return angles;
}

struct FourAngles {
  FourNumbers cos, sin;
};
// The first token's.
template <class Thread>
KVC_DEVICE FourAngles base_angles(const Thread& thread, const TileAngles& angles, int num_pairs,
                                  int pair) {
  const auto* base = reinterpret_cast<const float*>(thread.shared() + angles.base) + pair;
  return {four_floats(base), four_floats(base + num_pairs)};
}
// A token's, by its distance from the first one.
template <class Thread>
KVC_DEVICE FourAngles angles_by_distance(const Thread& thread, const TileAngles& angles,
                                         const FourAngles& base, int num_pairs, int token,
                                         int pair) {
  const int stride = distance_stride(num_pairs);
  const auto* distances =
      reinterpret_cast<const float*>(thread.shared() + angles.distances) + token * stride + pair;
  const FourNumbers cos = four_floats(distances), sin = four_floats(distances + kTileRows * stride);
  FourAngles of;
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    of.cos.x[i] = base.cos.x[i] * cos.x[i] - base.sin.x[i] * sin.x[i];
    of.sin.x[i] = base.sin.x[i] * cos.x[i] + base.cos.x[i] * sin.x[i];
  }
  return of;
}
KVC_DEVICE FourAngles angles_by_position(const DeviceRope& rope, int position, int pair) {
  const std::int64_t at = static_cast<std::int64_t>(position) * rope.num_pairs + pair;
  return {four_floats(rope.cos + at), four_floats(rope.sin + at)};
}

KVC_HOST_DEVICE void turn_four(const FourAngles& angles, bool interleaved, FourNumbers& first,
                               FourNumbers& second) {
  if (interleaved) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      FourNumbers& both = i < 2 ? first : second;
      rotate_pair(angles.cos.x[i], angles.sin.x[i], both.x[2 * (i % 2)], both.x[2 * (i % 2) + 1]);
    }
  } else {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      rotate_pair(angles.cos.x[i], angles.sin.x[i], first.x[i], second.x[i]);
    }
  }
}

}  // namespace kvc

// How rows of keys' codes and means turn with their tokens' distances from the first one of a tile.
#pragma once

#include "runtime/kernels/cuda/attention_codes_shared.h"

namespace kvc {

// Cosines and sines of a lane's rows and tokens of a turned group. Tables hold them times the cosine of 0, which all angles share.
struct LoadedTurns {
  float cos[4][2], sin[4][2];
};
KVC_DEVICE LoadedTurns load_turns(const CodedAttention& params, const std::int32_t (&angles)[2],
                                  int lane) {
  LoadedTurns turns;
  KVC_UNROLL
  for (int token = 0; token < 4; ++token) {
    KVC_UNROLL
    for (int next = 0; next < 2; ++next) {
      const int at = (4 * (lane / 4) + token) * params.num_angles + angles[next];
      turns.cos[token][next] = angles[next] >= 0 ? params.cos[at] : 0.0f;
      turns.sin[token][next] = angles[next] >= 0 ? params.sin[at] : 0.0f;
    }
  }
  return turns;
}
// angles: -1: the row is not turned
template <class Thread>
KVC_DEVICE void write_turns(Thread& thread, const CodedAttention& params, const CodedShared& shared,
                            const LoadedTurns& loaded, const std::int32_t (&angles)[2], int group,
                            int lane) {
  const float scale = params.num_angles > 0 ? 1.0f / params.cos[0] : 1.0f;
  auto* turns = shared_at<std::uint32_t>(thread.shared(), shared.turns()) + 8 * (32 * group + lane);
  KVC_UNROLL
  for (int token = 0; token < 4; ++token) {
    float cos[2], sin[2];
    KVC_UNROLL
    for (int next = 0; next < 2; ++next) {
      cos[next] = angles[next] >= 0 ? loaded.cos[token][next] * scale : 1.0f;
      sin[next] = loaded.sin[token][next] * scale;
    }
    turns[token] = pack_pair<Float16>(cos[0], cos[1]);
    turns[4 + token] = pack_pair<Float16>(sin[0], sin[1]);
  }
}

// A warp takes a group of means, of the first ones: the angles of a lane's rows, which are known before anything is placed.
template <class Thread>
KVC_DEVICE void mean_angles(const Thread& thread, const CodedAttention& params,
                            std::int32_t (&angles)[2]) {
  const int row = kGroupCoefficients * thread.warp() + 2 * (thread.lane() % 4);
  KVC_UNROLL
  for (int next = 0; next < 2; ++next) {
    angles[next] = row + next < params.means.count
                       ? params.means.angles[thread.block_y() * params.means.count + row + next]
                       : -1;
  }
}
// The turns of these groups.
template <class Thread>
KVC_DEVICE void write_mean_turns(Thread& thread, const CodedAttention& params,
                                 const CodedShared& shared, const LoadedTurns& loaded,
                                 const std::int32_t (&angles)[2]) {
  const int group = thread.warp();
  if (group < shared.mean_groups) {
    write_turns(thread, params, shared, loaded, angles,
                shared.turned_groups() - shared.mean_groups + group, thread.lane());
  }
}
// Those of all other groups, whose angles are in shared memory; by all threads.
template <class Thread>
KVC_DEVICE void prepare_turns(Thread& thread, const CodedAttention& params,
                              const CodedShared& shared) {
  const auto* of_rows = shared_at<std::int32_t>(thread.shared(), shared.angles());
  const int first_mean = shared.turned_groups() - shared.mean_groups;
  const int warps = thread.count() / 32;
  KVC_NO_UNROLL
  for (int group = thread.warp(); group < shared.turned_groups(); group += warps) {
    if (group >= first_mean && group < first_mean + warps) {
      continue;  // write_mean_turns()
    }
    const int row = kGroupCoefficients * group + 2 * (thread.lane() % 4);
    const std::int32_t angles[2] = {of_rows[row], of_rows[row + 1]};
    write_turns(thread, params, shared, load_turns(params, angles, thread.lane()), angles, group,
                thread.lane());
  }
}

}  // namespace kvc

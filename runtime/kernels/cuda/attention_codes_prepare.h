// What is the same for all tiles of a block of attention over codes: its query's products, angles, and where planes lie.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/attention_codes_rows.h"
#include "runtime/kernels/cuda/attention_codes_turns.h"

namespace kvc {

// Keys' groups or, if they are not turned, how many there are of each width and where the first one lies; by all threads.
template <class Thread>
KVC_DEVICE void place_keys(Thread& thread, const DeviceTiles& keys, const CodedShared& shared) {
  if (shared.turned) {
    auto* groups = shared_at<CodeGroup>(thread.shared(), 0);
    KVC_NO_UNROLL
    for (int i = thread.index(); i < shared.key_groups; i += thread.count()) {
      groups[i] = code_group(keys, i);
    }
    return;
  }
  auto* widths = shared_at<KeyWidth>(thread.shared(), shared.widths());
  int byte = 0;
  KVC_UNROLL
  for (int bits = kMostCodeBits; bits >= 1; --bits) {
    const int of_width = keys.coefficients[bits];
    if (thread.index() == 0) {
      widths[bits - 1] = {(of_width + kGroupCoefficients - 1) / kGroupCoefficients, byte};
    }
    byte += 4 * bits * of_width;
  }
}

// Groups of values, kinds of planes of pairs of them, and where the codes of their rows lie; by all threads, each a row of a pair.
template <class Thread>
KVC_DEVICE void place_values(Thread& thread, const DeviceTiles& values, const CodedShared& shared) {
  auto* groups = shared_at<CodeGroup>(thread.shared(), 0) + shared.key_groups;
  auto* kinds = shared_at<int>(thread.shared(), shared.kinds());
  auto* parts = shared_at<int>(thread.shared(), shared.parts());
  KVC_NO_UNROLL
  for (int i = thread.index(); i < 4 * shared.value_groups; i += thread.count()) {
    const int pair = i / 8, row = i % 8;
    const CodeGroup of[2] = {code_group(values, 2 * pair), code_group(values, 2 * pair + 1)};
    const int of_kinds[2] = {plane_kinds(of[0].bits), plane_kinds(of[1].bits)};
    KVC_UNROLL
    for (int kind = 0; kind < kPlaneKinds; ++kind) {
      KVC_UNROLL
      for (int second = 0; second < 2; ++second) {
        const CodeGroup& group = of[second];
        parts[16 * (kPlaneKinds * pair + kind) + 2 * row + second] =
            (of_kinds[second] >> kind & 1) != 0
                ? group.byte + 4 * group.bits * row + plane_offset(group.bits, plane_bits(kind))
                : shared.zeros();
      }
    }
    if (row == 0) {
      groups[2 * pair] = of[0];
      groups[2 * pair + 1] = of[1];
      kinds[pair] = of_kinds[0] | of_kinds[1];
    }
  }
}

// Zeros for products of rows that there are not, no angles for them, and scales of heads that there are not.
template <class Thread>
KVC_DEVICE void clear_products(Thread& thread, const CodedAttention& params,
                               const CodedShared& shared) {
  auto* words = shared_at<std::uint32_t>(thread.shared(), shared.queries());
  for (int i = thread.index(); i < (shared.rings() - shared.queries()) / 4; i += thread.count()) {
    words[i] = 0;
  }
  auto* angles = shared_at<std::int32_t>(thread.shared(), shared.angles());
  KVC_NO_UNROLL
  for (int i = thread.index(); i < kGroupCoefficients * shared.turned_groups();
       i += thread.count()) {
    angles[i] = -1;
  }
  auto* scales = shared_at<float>(thread.shared(), shared.scales());
  const int heads = params.num_heads / params.num_kv_heads;
  KVC_NO_UNROLL
  for (int i = heads + thread.index(); i < shared.heads; i += thread.count()) {
    scales[i] = scales[shared.heads + i] = 1;
    scales[2 * shared.heads + i] = 0;
  }
  KVC_NO_UNROLL
  for (int i = thread.index(); i < kGainIndices; i += thread.count()) {
    shared_at<float>(thread.shared(), shared.gains())[i] = gain_of(i);
  }
}

// Everything of a block that is the same for all of its tiles, by all threads. first: load_rows() of the thread's first ones;
// angles: its mean_angles()
template <class Thread>
KVC_DEVICE void prepare_block(Thread& thread, const CodedAttention& params, const DeviceTiles& keys,
                              const DeviceTiles& values, const CodedShared& shared,
                              const LoadedRows& first, const std::int32_t (&angles)[2]) {
  const LoadedTurns turns = load_turns(params, angles, thread.lane());  // used once they are there
  clear_products(thread, params, shared);
  stage_query(thread, params, shared);
  stage_weights(thread, params, shared, first);
  place_keys(thread, keys, shared);
  place_values(thread, values, shared);
  write_mean_turns(thread, params, shared, turns, angles);
  thread.sync();
  prepare_rows(thread, params, keys, shared, first);
  thread.sync();
  prepare_turns(thread, params, shared);
  const auto* of_warps = shared_at<float>(thread.shared(), shared.behind());
  auto* behind = shared_at<float>(thread.shared(), shared.scales()) + 2 * shared.heads;
  const int heads = params.num_heads / params.num_kv_heads, warps = thread.count() / 32;
  for (int head = thread.index(); head < heads; head += thread.count()) {
    float sum = 0;
    for (int warp = 0; warp < warps; ++warp) {
      sum += of_warps[warp * shared.heads + head];
    }
    behind[head] = sum;
  }
  thread.sync();
}

}  // namespace kvc

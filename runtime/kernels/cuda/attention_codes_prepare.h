// What is the same for all tiles of a block of attention over codes: its query's products, angles, and where planes lie.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/attention_codes_rows.h"

namespace kvc {

// A product of keys' codes in float16.
KVC_DEVICE float rounded_product(const float* queries, const CodedShared& shared, int group,
                                 int head, int row) {
  return to_float(narrow<Float16>(queries[16 * (group * shared.heads + head) + 2 * row]));
}

// What codes of keys that are not turned meet; by all threads.
template <class Thread>
KVC_DEVICE void prepare_steps(Thread& thread, const DeviceTiles& tiles, const CodedShared& shared) {
  std::uint8_t* memory = thread.shared();
  const auto* groups = shared_at<CodeGroup>(memory, 0);
  const auto* queries = shared_at<float>(memory, shared.queries());
  auto* widths = shared_at<KeyWidth>(memory, shared.widths());
  auto* products = shared_at<std::uint32_t>(memory, shared.products());
  int step = 0, first_group = 0, byte = 0;
  for (int bits = kMostCodeBits; bits >= 1; --bits) {
    const int count = (tiles.coefficients[bits] + kGroupCoefficients - 1) / kGroupCoefficients;
    if (thread.index() == 0) {
      widths[bits - 1] = {count, byte};
    }
    const int all = 64 * ((count + 1) / 2) * (shared.heads / 8);
    for (int i = thread.index(); i < all; i += thread.count()) {
      const int second = i % 2, lane = i / 2 % 32, n = i / 64 % (shared.heads / 8);
      const int group = 2 * (i / 64 / (shared.heads / 8)) + second, row = 2 * (lane % 4);
      const auto factor = static_cast<float>(1 << key_factor(bits));
      const auto product = [&](int of_row) {
        return factor *
               rounded_product(queries, shared, first_group + group, 8 * n + lane / 4, of_row);
      };
      products[64 * (shared.heads / 8) * step + i] =
          group < count ? pack_pair<Float16>(product(row), product(row + 1)) : 0;
    }
    step += (count + 1) / 2;
    first_group += count;
    byte += 4 * bits * tiles.coefficients[bits];
  }
  auto* behind = shared_at<float>(memory, shared.scales()) + 2 * shared.heads;
  for (int head = thread.warp(); head < shared.heads; head += thread.count() / 32) {
    float sum = 0;
    for (int i = thread.lane(); i < kGroupCoefficients * shared.key_groups; i += 32) {
      const int group = i / kGroupCoefficients, bits = groups[group].bits;
      if (bits > 0) {  // heads may have fewer groups than others
        sum += first_code_level(bits) *
               rounded_product(queries, shared, group, head, i % kGroupCoefficients);
      }
    }
    sum = warp_sum(thread, sum);
    if (thread.lane() == 0) {
      behind[head] = sum;
    }
  }
}

// Kinds of planes of values' pairs of groups, and where the codes of their rows lie; by all threads.
template <class Thread>
KVC_DEVICE void place_values(Thread& thread, const CodedShared& shared) {
  const auto* groups = shared_at<CodeGroup>(thread.shared(), 0) + shared.key_groups;
  auto* kinds = shared_at<int>(thread.shared(), shared.kinds());
  auto* parts = shared_at<int>(thread.shared(), shared.parts());
  for (int i = thread.index(); i < 8 * kPlaneKinds * shared.value_groups; i += thread.count()) {
    const int second = i % 2, row = i / 2 % 8, kind = i / 16 % kPlaneKinds;
    const int pair = i / 16 / kPlaneKinds;
    const CodeGroup group = groups[2 * pair + second];
    parts[i] = (plane_kinds(group.bits) >> kind & 1) != 0
                   ? group.byte + 4 * group.bits * row + plane_offset(group.bits, plane_bits(kind))
                   : shared.zeros();
  }
  for (int i = thread.index(); i < shared.value_groups / 2; i += thread.count()) {
    kinds[i] = plane_kinds(groups[2 * i].bits) | plane_kinds(groups[2 * i + 1].bits);
  }
}

// Everything of a block that is the same for all of its tiles, by all threads.
template <class Thread>
KVC_DEVICE void prepare_block(Thread& thread, const CodedAttention& params,
                              const CodedShared& shared) {
  std::uint8_t* memory = thread.shared();
  auto* groups = shared_at<CodeGroup>(memory, 0);
  const int kv_head = thread.block_y(), heads = params.num_heads / params.num_kv_heads;
  for (int i = thread.index(); i < shared.key_groups + shared.value_groups; i += thread.count()) {
    groups[i] = i < shared.key_groups ? code_group(params.keys[kv_head], i)
                                      : code_group(params.values[kv_head], i - shared.key_groups);
  }
  for (int i = thread.index(); i < kGainIndices; i += thread.count()) {
    shared_at<float>(memory, shared.gains())[i] = gain_of(i);
  }
  stage_query(thread, params, shared);
  thread.sync();
  place_values(thread, shared);
  prepare_rows(thread, params, shared);
  thread.sync();
  prepare_turns(thread, params, shared);
  // Float16 holds what is divided by its head's largest.
  auto* scales = shared_at<float>(memory, shared.scales());
  auto* queries = shared_at<float>(memory, shared.queries());
  for (int i = thread.warp(); i < 2 * shared.heads; i += thread.count() / 32) {
    const int head = i % shared.heads, first = i < shared.heads ? 0 : shared.key_groups;
    if (head >= heads) {  // of zeros
      if (thread.lane() == 0) {
        scales[i] = 1;
      }
      continue;
    }
    const int count = i < shared.heads ? shared.key_groups : shared.mean_groups;
    float largest = 0;
    for (int j = thread.lane(); j < 16 * count; j += 32) {
      const float x = fabsf(queries[16 * ((first + j / 16) * shared.heads + head) + j % 16]);
      largest = x > largest ? x : largest;
    }
    largest = warp_max(thread, largest);
    largest = largest > 0 ? largest : 1.0f;
    for (int j = thread.lane(); j < 16 * count; j += 32) {
      queries[16 * ((first + j / 16) * shared.heads + head) + j % 16] /= largest;
    }
    if (thread.lane() == 0) {
      scales[i] = largest;
    }
  }
  thread.sync();
  if (!shared.turned) {
    prepare_steps(thread, params.keys[kv_head], shared);
    thread.sync();
  }
}

}  // namespace kvc

// What is the same for all tiles of a block of attention over codes: its query's products, angles, and where planes lie.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/attention_codes_shared.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// Rows that a group has: of coefficients or of means.
struct GroupRows {
  KeyRows rows;
  int first, count;
};
KVC_DEVICE GroupRows group_rows(const CodedAttention& params, const CodedShared& shared,
                                const CodeGroup* groups, int group) {
  if (group < shared.key_groups) {
    return {params.codes, groups[group].first, groups[group].count};
  }
  const int first = kGroupCoefficients * (group - shared.key_groups);
  const int left = params.means.count - first;
  return {params.means, first, left < kGroupCoefficients ? left : kGroupCoefficients};
}

// A group's row from memory: the channels of the query that it meets, by which weights, and its column of the angles.
struct LoadedRow {
  float weights[2];
  std::int32_t channels[2], angle;
};
// turned: is it? Only then it has an angle.
KVC_DEVICE LoadedRow load_row(const GroupRows& of, int kv_head, int row, bool turned) {
  if (row >= of.count) {
    return {{0, 0}, {0, 0}, -1};
  }
  const int first = 2 * kv_head * of.rows.count + of.first + row, second = first + of.rows.count;
  return {{of.rows.weights[first], of.rows.weights[second]},
          {of.rows.channels[first], of.rows.channels[second]},
          turned ? of.rows.angles[kv_head * of.rows.count + of.first + row] : -1};
}

// The query heads of the KV head, [heads, head_dim] as they are, to where products will lie; by all threads.
template <class Thread>
KVC_DEVICE void stage_query(Thread& thread, const CodedAttention& params,
                            const CodedShared& shared) {
  const int numbers = params.num_heads / params.num_kv_heads * params.head_dim;
  const auto* query =
      static_cast<const std::uint16_t*>(params.query) +
      static_cast<std::int64_t>(thread.block_z()) * params.num_heads * params.head_dim +
      static_cast<std::int64_t>(thread.block_y()) * numbers;
  auto* to = shared_at<std::uint16_t>(thread.shared(), shared.products());
  KVC_UNROLL_BY_4
  for (int i = thread.index(); i < numbers; i += thread.count()) {
    to[i] = query[i];
  }
}

// Products of all rows with the staged query, and the angles of those that are turned; by all threads. Several rows' loads are
// under way at once.
template <class Thread>
KVC_DEVICE void prepare_rows(Thread& thread, const CodedAttention& params,
                             const CodedShared& shared) {
  constexpr int kAtOnce = 4;
  std::uint8_t* memory = thread.shared();
  const auto* groups = shared_at<CodeGroup>(memory, 0);
  const auto* query = shared_at<std::uint16_t>(memory, shared.products());
  auto* queries = shared_at<float>(memory, shared.queries());
  auto* angles = shared_at<std::int32_t>(memory, shared.angles());
  const int heads = params.num_heads / params.num_kv_heads;
  const int first_turned = shared.turned ? 0 : shared.key_groups;
  const int rows = kGroupCoefficients * (shared.key_groups + shared.mean_groups);
  for (int from = thread.index(); from < rows; from += kAtOnce * thread.count()) {
    LoadedRow loaded[kAtOnce];
    KVC_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = from + i * thread.count(), group = at / kGroupCoefficients;
      loaded[i] = at < rows ? load_row(group_rows(params, shared, groups, group), thread.block_y(),
                                       at % kGroupCoefficients, group >= first_turned)
                            : LoadedRow{{0, 0}, {0, 0}, -1};
    }
    KVC_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = from + i * thread.count(), group = at / kGroupCoefficients;
      if (at >= rows) {
        continue;
      }
      if (group >= first_turned) {
        angles[at - kGroupCoefficients * first_turned] = loaded[i].angle;
      }
      const float a = loaded[i].weights[0], b = loaded[i].weights[1];
      for (int head = 0; head < shared.heads; ++head) {
        float p = 0, q = 0;
        if (head < heads) {
          p = widened(params.element, query[head * params.head_dim + loaded[i].channels[0]]);
          q = widened(params.element, query[head * params.head_dim + loaded[i].channels[1]]);
        }
        float* to = queries + 2 * (kGroupCoefficients * (group * shared.heads + head) +
                                   at % kGroupCoefficients);
        to[0] = a * p + b * q;
        to[1] = a * q - b * p;
      }
    }
  }
}

// Cosines and sines of tokens' distances for the rows that are turned, as fragments; by all threads.
template <class Thread>
KVC_DEVICE void prepare_turns(Thread& thread, const CodedAttention& params,
                              const CodedShared& shared) {
  auto* turns = shared_at<std::uint32_t>(thread.shared(), shared.turns());
  const auto* angles = shared_at<std::int32_t>(thread.shared(), shared.angles());
  if (shared.turned_groups() == 0) {
    return;
  }
  // Cosines of 0, where all angles have a factor. Without RoPE there are none.
  const float scale = params.num_angles > 0 ? 1.0f / params.cos[0] : 1.0f;
  for (int i = thread.index(); i < 32 * shared.turned_groups(); i += thread.count()) {
    const int lane = i % 32, row = kGroupCoefficients * (i / 32) + 2 * (lane % 4);
    float cos[4][2], sin[4][2];
    KVC_UNROLL
    for (int token = 0; token < 4; ++token) {
      KVC_UNROLL
      for (int next = 0; next < 2; ++next) {
        const int angle = angles[row + next];
        const int at = (4 * (lane / 4) + token) * params.num_angles + angle;
        cos[token][next] = angle >= 0 ? params.cos[at] * scale : 1.0f;
        sin[token][next] = angle >= 0 ? params.sin[at] * scale : 0.0f;
      }
    }
    KVC_UNROLL
    for (int token = 0; token < 4; ++token) {
      turns[8 * i + token] = pack_pair<Float16>(cos[token][0], cos[token][1]);
      turns[8 * i + 4 + token] = pack_pair<Float16>(sin[token][0], sin[token][1]);
    }
  }
}

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

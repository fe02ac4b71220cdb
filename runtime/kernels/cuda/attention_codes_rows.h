// Rows of keys' codes and means in a block of attention over codes: their products with the query, and how they turn.
#pragma once

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

}  // namespace kvc

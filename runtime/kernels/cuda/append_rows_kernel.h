// New rows of stores.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/append_rows.h"
#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// 1 / rms of `count` numbers, the same bits in all lanes.
template <class Thread>
KVC_DEVICE float inverse_rms(Thread& thread, const float* x, int count, float epsilon) {
  float sum = 0;
  for (int i = thread.lane(); i < count; i += 32) {
    sum += x[i] * x[i];
  }
  return 1.0f / sqrtf(warp_sum(thread, sum) / static_cast<float>(count) + epsilon);
}

// One head's numbers, normed, turned and narrowed.
struct AppendedHead {
  const float* x;
  const float* norm;  // of its channels, or null
  float factor;       // 1 / rms
  std::uint16_t* to;
  std::uint16_t* to_float16;  // besides, or null
};

template <class Thread>
KVC_DEVICE void write_head(Thread& thread, const AppendRows& params, const AppendedHead& head,
                           int num_pairs, int position) {
  const auto number = [&](int channel) {
    return head.norm == nullptr ? head.x[channel]
                                : head.x[channel] * head.factor * head.norm[channel];
  };
  const auto write = [&](int channel, float x) {
    head.to[channel] = narrow_bits(params.element, x);
    if (head.to_float16 != nullptr) {
      head.to_float16[channel] = narrow_bits(Float16{}, x);
    }
  };
  for (int pair = thread.lane(); pair < num_pairs; pair += 32) {
    const std::int64_t angle = static_cast<std::int64_t>(position) * params.rope.num_pairs + pair;
    const int i = first_of_pair(params.rope, pair), j = second_of_pair(params.rope, pair);
    float first = number(i), second = number(j);
    rotate_pair(params.rope.cos[angle], params.rope.sin[angle], first, second);
    write(i, first);
    write(j, second);
  }
  for (int channel = 2 * num_pairs + thread.lane(); channel < params.head_dim; channel += 32) {
    write(channel, number(channel));
  }
}

// How many have positions below `first`.
KVC_HOST_DEVICE int rows_before(const ApartRows& apart, int sequence, int first, int sinks) {
  int below = 0, last = apart.num_rows[sequence];
  if (apart.positions.blocks == nullptr) {
    return first < sinks ? 0 : first - sinks < last ? first - sinks : last;
  }
  while (below < last) {
    const int middle = (below + last) / 2;
    const bool hidden = *row_of_words<std::int32_t>(apart.positions, sequence, middle) < first;
    below = hidden ? middle + 1 : below;
    last = hidden ? last : middle;
  }
  return below;
}

// Tokens from `first` on are shown.
KVC_HOST_DEVICE void write_first_rows(const AppendRows& params, int sequence, int first) {
  first = first > 0 ? first : 0;
  int hidden = 0;
  for (const ApartRows& apart : params.apart) {
    if (apart.num_rows != nullptr) {
      const int rows = rows_before(apart, sequence, first, params.sinks);
      const bool is_apart =
          apart.very_first != nullptr && rows == 0 && apart.num_rows[sequence] > 0;
      if (apart.very_first != nullptr) {
        apart.very_first[sequence] = is_apart ? 1 : 0;
      }
      apart.first_rows[sequence] = is_apart ? 1 : rows;
      hidden += rows;
    }
  }
  if (params.first_rows != nullptr) {
    params.first_rows[sequence] = first - hidden;
  }
}

// Grid: (heads of queries, keys and values in chunks of the block's warps, sequence). A warp takes one head.
struct AppendRowsKernel : Kernel<AppendRows, 128> {
  static constexpr const char* kName = "append_rows";

  template <class Thread>
  static KVC_DEVICE void run(const AppendRows& params, Thread& thread) {
    const int sequence = thread.block_y(), dim = params.head_dim;
    const int head = thread.block_x() * (thread.count() / 32) + thread.warp();
    const int first_key = params.num_heads, first_value = first_key + params.num_kv_heads;
    const int heads = first_value + params.num_kv_heads;
    if (head >= heads) {
      return;
    }
    const int position = params.positions[sequence];
    const bool writes_first = params.first_rows != nullptr || params.apart[0].very_first != nullptr;
    if (writes_first && head == 0 && thread.lane() == 0) {
      write_first_rows(params, sequence, params.window > 0 ? position + 1 - params.window : 0);
    }
    const float* token = params.projected + static_cast<std::int64_t>(sequence) * heads * dim;
    const bool is_query = head < first_key, is_value = head >= first_value;
    const int of_kind = is_query ? head : is_value ? head - first_value : head - first_key;
    const float* norm = is_query ? params.query_norm : is_value ? nullptr : params.key_norm;
    AppendedHead place{token + static_cast<std::int64_t>(head) * dim, norm, 1.0f, nullptr, nullptr};
    if (norm != nullptr && params.norm_whole) {
      place.factor = inverse_rms(thread, token + (is_query ? 0 : first_key) * dim,
                                 (is_query ? params.num_heads : params.num_kv_heads) * dim,
                                 params.norm_epsilon);
      place.norm = norm + of_kind * dim;
    } else if (norm != nullptr) {
      place.factor = inverse_rms(thread, place.x, dim, params.norm_epsilon);
    }
    if (is_query) {
      const std::int64_t at = (static_cast<std::int64_t>(sequence) * params.num_heads + head) * dim;
      place.to = static_cast<std::uint16_t*>(params.query) + at;
      if (params.query_float16 != nullptr) {
        place.to_float16 = static_cast<std::uint16_t*>(params.query_float16) + at;
      }
    } else {
      const int row = params.rows == nullptr ? position : params.rows[sequence];
      const RowPlace of_row =
          row_place(is_value ? params.value : params.key, sequence, row, of_kind * dim);
      place.to =
          const_cast<std::uint16_t*>(reinterpret_cast<const std::uint16_t*>(of_row.channels));
    }
    const bool is_key = !is_query && !is_value;
    if (is_key && params.key_rms.blocks != nullptr && thread.lane() == 0) {
      const int row = params.rows == nullptr ? position : params.rows[sequence];
      row_of_words<float>(params.key_rms, sequence, row)[of_kind] = 1.0f / place.factor;
    }
    write_head(thread, params, place, is_value ? 0 : params.rope.num_pairs, position);
  }
};

template <class Launcher>
LaunchError launch_kernels(const AppendRows& params, const Launcher& launcher) {
  if (LaunchError error = check_append_rows(params); !error.empty()) {
    return error;
  }
  const int threads = launcher.threads(AppendRowsKernel::kThreads);
  const int heads = params.num_heads + 2 * params.num_kv_heads;
  return launcher.template run<AppendRowsKernel>(
      params, {divide_up(heads, threads / 32), params.num_sequences}, threads);
}

// Grid: sequences. A block's threads share the numbers of the row.
struct AppendLatentsKernel : Kernel<AppendLatents, 256> {
  static constexpr const char* kName = "append_latents";

  template <class Thread>
  static KVC_DEVICE void run(const AppendLatents& params, Thread& thread) {
    const int sequence = thread.block_x(), row = params.rows[sequence], width = params.to.width;
    const float* from = params.from + static_cast<std::int64_t>(sequence) * width;
    if (params.are_floats) {
      float* to = row_of_words<float>(params.to, sequence, row);
      for (int i = thread.index(); i < width; i += thread.count()) {
        to[i] = from[i];
      }
      return;
    }
    auto* to = const_cast<std::uint16_t*>(
        reinterpret_cast<const std::uint16_t*>(row_place(params.to, sequence, row, 0).channels));
    for (int i = thread.index(); i < width; i += thread.count()) {
      to[i] = narrow_bits(params.to.element, from[i]);
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const AppendLatents& params, const Launcher& launcher) {
  return launcher.template run<AppendLatentsKernel>(
      params, {params.num_sequences}, launcher.threads(AppendLatentsKernel::kThreads));
}

}  // namespace kvc

// Grid: (pieces of 8 channels of all rows, one a thread; sequence).
#pragma once

#include "runtime/kernels/cuda/attention_fuse_rows.h"
#include "runtime/kernels/cuda/device_numbers.h"

namespace kvc {

struct EightNumbers {
  float x[8];
};

// Channels channel .. channel + 7, a multiple of 8.
KVC_HOST_DEVICE EightNumbers read_eight(const DeviceRows& rows, int sequence, int row,
                                        int channel) {
  EightNumbers numbers;
  const int in_group = channel % kScaledChannels;
  const RowPlace place = row_place(rows, sequence, row, channel - in_group);
  if (rows.element <= DeviceElement::kFloat16) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(place.channels + 2 * in_group);
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool is_bfloat16 = rows.element == DeviceElement::kBFloat16;
      numbers.x[2 * i] =
          is_bfloat16 ? low_of_pair<BFloat16>(words[i]) : low_of_pair<Float16>(words[i]);
      numbers.x[2 * i + 1] =
          is_bfloat16 ? high_of_pair<BFloat16>(words[i]) : high_of_pair<Float16>(words[i]);
    }
    return numbers;
  }
  KVC_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int at = in_group + i;
    const std::uint32_t code =
        four_codes(rows.element, place.channels, at / 4 * 4) >> (8 * (i % 4)) & 0xFF;
    if (rows.element == DeviceElement::kFloat8) {
      numbers.x[i] = rows.scale * float8_to_float(static_cast<std::uint8_t>(code));
    } else {
      const auto* scale =
          reinterpret_cast<const Float16*>(place.scales) + (rows.per_channel ? at : 0);
      numbers.x[i] =
          dequantise(code, to_float(scale[0]), to_float(scale[place.minimum_offset / 2]));
    }
  }
  return numbers;
}

template <class Thread>
KVC_DEVICE void fuse_rows_body(const FuseRows& params, Thread& thread) {
  const int pieces = params.first.width / 8, sequence = thread.block_y();
  const std::int64_t piece =
      static_cast<std::int64_t>(thread.block_x()) * thread.count() + thread.index();
  const std::int64_t row = piece / pieces;
  if (row >= params.max_rows || row >= params.num_rows[sequence]) {
    return;
  }
  const int channel = static_cast<int>(piece % pieces) * 8;
  const EightNumbers first = read_eight(params.first, sequence, static_cast<int>(row), channel);
  const EightNumbers second = read_eight(params.second, sequence, static_cast<int>(row), channel);
  auto* to = static_cast<std::uint32_t*>(params.output) +
             ((static_cast<std::int64_t>(sequence) * params.max_rows + row) * params.first.width +
              channel) /
                 2;
  float sums[8];
  KVC_UNROLL
  for (int i = 0; i < 8; ++i) {
    const float a = params.first_factor == nullptr ? 1.0f : params.first_factor[channel + i];
    const float b = params.second_factor == nullptr ? 1.0f : params.second_factor[channel + i];
    sums[i] = a * first.x[i] + b * second.x[i];
  }
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    to[i] = params.element == DeviceElement::kBFloat16
                ? pack_pair<BFloat16>(sums[2 * i], sums[2 * i + 1])
                : pack_pair<Float16>(sums[2 * i], sums[2 * i + 1]);
  }
}

}  // namespace kvc

// Rows of stores as numbers, or as they are.
#pragma once

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/stored_rows.h"

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

// Grid: (chunks of the block's threads, sequence). A thread turns eight channels of a row into numbers.
template <class T>
struct DequantiseRowsKernel : Kernel<DequantiseRows, 128> {
  static constexpr const char* kName = "dequantise_rows";

  template <class Thread>
  static KVC_DEVICE void run(const DequantiseRows& params, Thread& thread) {
    const std::int64_t piece =
        static_cast<std::int64_t>(thread.block_x()) * thread.count() + thread.index();
    const int width = params.from.width, pieces = width / 8;
    if (piece >= static_cast<std::int64_t>(params.count) * pieces) {
      return;
    }
    const int sequence = thread.block_y(), row = static_cast<int>(piece / pieces);
    const int channel = static_cast<int>(piece % pieces) * 8;
    const EightNumbers numbers = read_eight(params.from, sequence, params.first + row, channel);
    auto* to = static_cast<std::uint32_t*>(params.to) +
               ((static_cast<std::int64_t>(sequence) * params.count + row) * width + channel) / 2;
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      to[i] = pack_pair<T>(numbers.x[2 * i], numbers.x[2 * i + 1]);
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const DequantiseRows& params, const Launcher& launcher) {
  const int width = params.from.width;
  if (width % kScaledChannels != 0) {
    return "dequantise_rows: takes rows of a multiple of 32 channels";
  }
  const std::int64_t pieces = static_cast<std::int64_t>(params.count) * (width / 8);
  return with_type(params.to_element, [&](auto type) {
    using Instance = DequantiseRowsKernel<decltype(type)>;
    const int threads = launcher.threads(Instance::kThreads);
    return launcher.template run<Instance>(
        params, {divide_up(pieces, threads), params.num_sequences}, threads);
  });
}

}  // namespace kvc

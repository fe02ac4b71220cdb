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

// Grid: (rows in chunks of the block's warps, sequence). A warp moves a row, a word of 4 bytes a lane at a time.
struct GatherRowsKernel : Kernel<GatherRows, 128> {
  static constexpr const char* kName = "gather_rows";

  template <class Thread>
  static KVC_DEVICE void run(const GatherRows& params, Thread& thread) {
    const int row = thread.block_x() * (thread.count() / 32) + thread.warp();
    const int sequence = thread.block_y();
    if (row >= params.counts[sequence]) {
      return;
    }
    const int chosen = params.chosen[static_cast<std::int64_t>(sequence) * params.max_count + row];
    const int first = params.first_rows == nullptr ? 0 : params.first_rows[sequence];
    const auto* from = reinterpret_cast<const std::uint32_t*>(
        row_place(params.from, sequence, chosen, 0).channels);
    auto* to = const_cast<std::uint32_t*>(reinterpret_cast<const std::uint32_t*>(
        row_place(params.to, sequence, first + row, 0).channels));
    const int words = static_cast<int>(row_stride(params.from) / 4);
    for (int i = thread.lane(); i < words; i += 32) {
      to[i] = from[i];
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const GatherRows& params, const Launcher& launcher) {
  if (params.from.width != params.to.width || params.from.element != params.to.element ||
      params.from.per_channel || params.to.per_channel || params.from.width % 4 != 0) {
    return "gather_rows: takes two stores laid out alike, of rows that hold their own scales and a "
           "multiple of 4 channels";
  }
  const int threads = launcher.threads(GatherRowsKernel::kThreads);
  return launcher.template run<GatherRowsKernel>(
      params, {divide_up(params.max_count, threads / 32), params.num_sequences}, threads);
}

// Grid: (chunks of the block's threads, sequence). A thread fuses eight channels of a row.
struct FuseRowsKernel : Kernel<FuseRows, 256> {
  static constexpr const char* kName = "fuse_rows";

  template <class Thread>
  static KVC_DEVICE void run(const FuseRows& params, Thread& thread) {
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
};

template <class Launcher>
LaunchError launch_kernels(const FuseRows& params, const Launcher& launcher) {
  const int width = params.first.width, threads = launcher.threads(FuseRowsKernel::kThreads);
  if (width != params.second.width || width % kScaledChannels != 0) {
    return "fuse_rows: rows of " + std::to_string(width) + " and " +
           std::to_string(params.second.width) + " numbers, expected one multiple of 32";
  }
  const std::int64_t pieces = static_cast<std::int64_t>(params.max_rows) * (width / 8);
  return launcher.template run<FuseRowsKernel>(
      params, {divide_up(pieces, threads), params.num_sequences}, threads);
}

}  // namespace kvc

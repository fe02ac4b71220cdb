// Grid: (chunks of the block's threads). A thread turns eight codes of a row into numbers.
#pragma once

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/quantise_rows.h"

namespace kvc {

template <class T>
struct DequantiseRowsKernel : Kernel<DequantiseRows, 128> {
  static constexpr const char* kName = "dequantise_rows";

  template <class Thread>
  static KVC_DEVICE void run(const DequantiseRows& params, Thread& thread) {
    const std::int64_t piece =
        static_cast<std::int64_t>(thread.block_x()) * thread.count() + thread.index();
    const int pieces = params.from.width / 8;
    if (piece >= static_cast<std::int64_t>(params.count) * pieces) {
      return;
    }
    const int row = static_cast<int>(piece / pieces),
              channel = static_cast<int>(piece % pieces) * 8;
    const int in_group = channel % kScaledChannels;
    const RowPlace place = row_place(params.from, 0, params.first + row, channel - in_group);
    const auto number = [&](int i) {
      const int at = in_group + i;
      const std::uint32_t code =
          four_codes(codes_place(params.from.element, at / 4 * 4), place.channels) >>
              (8 * (i % 4)) &
          0xFF;
      const auto* scale =
          reinterpret_cast<const Float16*>(place.scales) + (params.from.per_channel ? at : 0);
      return dequantise(code, to_float(scale[0]), to_float(scale[place.minimum_offset / 2]));
    };
    auto* to = static_cast<std::uint32_t*>(params.to) + 4 * piece;
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      to[i] = pack_pair<T>(number(2 * i), number(2 * i + 1));
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const DequantiseRows& params, const Launcher& launcher) {
  const int width = params.from.width;
  if (width % kScaledChannels != 0 || !is_coded(params.from.element)) {
    return "dequantise_rows: takes int8 or int4 rows of a multiple of 32 channels";
  }
  const std::int64_t pieces = static_cast<std::int64_t>(params.count) * (width / 8);
  return with_type(params.to_element, [&](auto type) {
    using Instance = DequantiseRowsKernel<decltype(type)>;
    const int threads = launcher.threads(Instance::kThreads);
    return launcher.template run<Instance>(params, {divide_up(pieces, threads)}, threads);
  });
}

}  // namespace kvc

// Grid: (chunks of the block's threads, sequence). A thread makes the codes of numbers that share a scale: 32
// channels of a row, or, with per-channel scales, 32 rows of channels c and c + 16 of a run of 32, which int4
// holds in one byte.
#pragma once

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/quantise_rows.h"

namespace kvc {

// float16 nearest below or above x, within its finite range; zeros keep their sign.
KVC_HOST_DEVICE std::uint16_t float16_at_most(float x) {
  const float kept = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
  const std::uint16_t bits = narrow_bits(Float16{}, kept);
  if (to_float(Float16{bits}) <= kept) {
    return bits;
  }
  if (bits & 0x8000) {
    return bits == 0xFBFF ? bits : static_cast<std::uint16_t>(bits + 1);
  }
  return bits == 0 ? std::uint16_t{0x8001} : static_cast<std::uint16_t>(bits - 1);
}
KVC_HOST_DEVICE std::uint16_t float16_at_least(float x) {
  return static_cast<std::uint16_t>(float16_at_most(-x) ^ 0x8000);
}

// The scale and the minimum of numbers from `smallest` to `largest`.
struct CodeScale {
  std::uint16_t scale, minimum;  // float16
  float minimum_value, inverse;
};
KVC_HOST_DEVICE CodeScale code_scale(float smallest, float largest, float levels) {
  CodeScale found;
  found.minimum = float16_at_most(smallest);
  found.minimum_value = to_float(Float16{found.minimum});
  found.scale = float16_at_least((largest - found.minimum_value) / levels);
  const float scale = to_float(Float16{found.scale});
  found.inverse = scale == 0 ? 0.0f : 1 / scale;
  return found;
}

// The nearest code, ties to even; what is no number becomes 0.
KVC_HOST_DEVICE std::uint32_t code_of(const CodeScale& scale, float x, float levels) {
  float code = (x - scale.minimum_value) * scale.inverse;
  code = code > 0 ? code : 0.0f;
  code = code < levels ? code : levels;
  const float magic = 12582912.0f;  // 1.5 * 2^23: floats there are integers
  return float_bits(code + magic) & 0xFF;
}

KVC_HOST_DEVICE float code_levels(DeviceElement element) {
  return element == DeviceElement::kInt8 ? 255.0f : 15.0f;
}

// 32-bit words: rows of codes and scales begin at multiples of 4 bytes.
KVC_HOST_DEVICE void store_word(std::uint8_t* to, std::uint32_t word) {
  *reinterpret_cast<std::uint32_t*>(to) = word;
}

// 32 numbers, two in each word of `from`, to their codes and their scale with its minimum.
template <class T>
KVC_DEVICE void quantise_group(const std::uint32_t* from, DeviceElement element,
                               std::uint8_t* codes, std::uint8_t* scale_to) {
  std::uint32_t pairs[kScaledChannels / 2];
  KVC_UNROLL
  for (int i = 0; i < kScaledChannels / 2; ++i) {
    pairs[i] = from[i];
  }
  float smallest = low_of_pair<T>(pairs[0]), largest = smallest;
  KVC_UNROLL
  for (int i = 0; i < kScaledChannels / 2; ++i) {
    const float low = low_of_pair<T>(pairs[i]), high = high_of_pair<T>(pairs[i]);
    smallest = low < smallest ? low : smallest;
    smallest = high < smallest ? high : smallest;
    largest = low > largest ? low : largest;
    largest = high > largest ? high : largest;
  }
  const float levels = code_levels(element);
  const CodeScale scale = code_scale(smallest, largest, levels);
  store_word(scale_to, scale.scale | static_cast<std::uint32_t>(scale.minimum) << 16);
  const auto four = [&](int i) {  // codes of channels 4 i .. 4 i + 3
    return code_of(scale, low_of_pair<T>(pairs[2 * i]), levels) |
           code_of(scale, high_of_pair<T>(pairs[2 * i]), levels) << 8 |
           code_of(scale, low_of_pair<T>(pairs[2 * i + 1]), levels) << 16 |
           code_of(scale, high_of_pair<T>(pairs[2 * i + 1]), levels) << 24;
  };
  if (element == DeviceElement::kInt8) {
    KVC_UNROLL
    for (int i = 0; i < 8; ++i) {
      store_word(codes + 4 * i, four(i));
    }
  } else {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      store_word(codes + 4 * i, four(i) | four(i + 4) << 4);
    }
  }
}

template <class T>
KVC_DEVICE void quantise_row_group(const QuantiseRows& params, int sequence, int row, int first_row,
                                   int channel) {
  const auto* from =
      static_cast<const std::uint32_t*>(params.from) +
      ((static_cast<std::int64_t>(sequence) * params.count + row) * params.to.width + channel) / 2;
  const RowPlace place = row_place(params.to, sequence, first_row + row, channel);
  quantise_group<T>(from, params.to.element, const_cast<std::uint8_t*>(place.channels),
                    const_cast<std::uint8_t*>(place.scales));
}

template <class T>
KVC_HOST_DEVICE CodeScale channel_scale(const std::uint16_t* numbers, int width, float levels) {
  float smallest = to_float(T{numbers[0]}), largest = smallest;
  for (int row = 1; row < kScaledRows; ++row) {
    const float x = to_float(T{numbers[static_cast<std::int64_t>(row) * width]});
    smallest = x < smallest ? x : smallest;
    largest = x > largest ? x : largest;
  }
  return code_scale(smallest, largest, levels);
}

template <class T>
KVC_HOST_DEVICE void quantise_channels(const QuantiseRows& params, int sequence, int row,
                                       int first_row, int channel) {
  const int width = params.to.width, half = kScaledChannels / 2;
  const auto* from = static_cast<const std::uint16_t*>(params.from) +
                     (static_cast<std::int64_t>(sequence) * params.count + row) * width + channel;
  const float levels = code_levels(params.to.element);
  const CodeScale low = channel_scale<T>(from, width, levels);
  const CodeScale high = channel_scale<T>(from + half, width, levels);
  const int in_group = channel % kScaledChannels, group = channel - in_group;
  const RowPlace place = row_place(params.to, sequence, first_row + row, group);
  auto* scales =
      const_cast<std::uint16_t*>(reinterpret_cast<const std::uint16_t*>(place.scales)) + in_group;
  scales[0] = low.scale;
  scales[half] = high.scale;
  scales[width] = low.minimum;
  scales[width + half] = high.minimum;
  auto* codes = const_cast<std::uint8_t*>(place.channels) + in_group;
  const int row_bytes = channel_bytes(params.to.element, width);
  for (int i = 0; i < kScaledRows; ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * width;
    const std::uint32_t first = code_of(low, to_float(T{from[at]}), levels);
    const std::uint32_t second = code_of(high, to_float(T{from[at + half]}), levels);
    std::uint8_t* to = codes + static_cast<std::int64_t>(i) * row_bytes;
    if (params.to.element == DeviceElement::kInt8) {
      to[0] = static_cast<std::uint8_t>(first);
      to[half] = static_cast<std::uint8_t>(second);
    } else {
      to[0] = static_cast<std::uint8_t>(first | second << 4);
    }
  }
}

// Pieces of one sequence's work: (row, 32 channels), or (32 rows, pair of channels).
KVC_HOST_DEVICE int quantise_pieces(const QuantiseRows& params) {
  return params.to.per_channel ? params.count / kScaledRows * (params.to.width / 2)
                               : params.count * (params.to.width / kScaledChannels);
}

template <class T>
struct QuantiseRowsKernel : Kernel<QuantiseRows, 128> {
  static constexpr const char* kName = "quantise_rows";

  template <class Thread>
  static KVC_DEVICE void run(const QuantiseRows& params, Thread& thread) {
    const int piece = thread.block_x() * thread.count() + thread.index();
    const int sequence = thread.block_y(), width = params.to.width;
    if (piece >= quantise_pieces(params)) {
      return;
    }
    const int first_row = params.first_rows == nullptr ? 0 : params.first_rows[sequence];
    if (!params.to.per_channel) {
      const int groups = width / kScaledChannels;
      quantise_row_group<T>(params, sequence, piece / groups, first_row,
                            piece % groups * kScaledChannels);
      return;
    }
    const int half = kScaledChannels / 2, pair = piece % (width / 2);
    quantise_channels<T>(params, sequence, piece / (width / 2) * kScaledRows, first_row,
                         pair / half * kScaledChannels + pair % half);
  }
};

template <class Launcher>
LaunchError launch_kernels(const QuantiseRows& params, const Launcher& launcher) {
  if (params.to.width % kScaledChannels != 0 || !is_coded(params.to.element) ||
      (params.to.per_channel && params.count % kScaledRows != 0)) {
    return "quantise_rows: takes rows of a multiple of 32 channels, to int8 or int4; with a scale "
           "for each channel, a multiple of 32 of them";
  }
  return with_type(params.from_element, [&](auto type) {
    using Instance = QuantiseRowsKernel<decltype(type)>;
    const int threads = launcher.threads(Instance::kThreads);
    return launcher.template run<Instance>(
        params, {divide_up(quantise_pieces(params), threads), params.num_sequences}, threads);
  });
}

}  // namespace kvc

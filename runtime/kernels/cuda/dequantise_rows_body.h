// Grid: (chunks of the block's threads, sequence). A thread turns eight channels of a row into numbers.
#pragma once

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/quantise_rows.h"

namespace kvc {

constexpr int kDequantisedChannels = 8;

KVC_HOST_DEVICE float stored_number(const DeviceRows& rows, const RowPlace& place, int channel) {
  switch (rows.element) {
    case DeviceElement::kBFloat16:
      return to_float(BFloat16{reinterpret_cast<const std::uint16_t*>(place.channels)[channel]});
    case DeviceElement::kFloat16:
      return to_float(Float16{reinterpret_cast<const std::uint16_t*>(place.channels)[channel]});
    case DeviceElement::kFloat8:
      return rows.scale * float8_to_float(place.channels[channel]);
    default:
      break;
  }
  const std::uint32_t code =
      four_codes(rows.element, place.channels, channel / 4 * 4) >> (8 * (channel % 4)) & 0xFF;
  const std::uint8_t* scale = place.scales + (rows.per_channel ? 2 * channel : 0);
  return dequantise(
      code, to_float(Float16{*reinterpret_cast<const std::uint16_t*>(scale)}),
      to_float(Float16{*reinterpret_cast<const std::uint16_t*>(scale + place.minimum_offset)}));
}

template <class T, class Thread>
KVC_DEVICE void dequantise_rows_body(const DequantiseRows& params, Thread& thread) {
  const std::int64_t piece =
      static_cast<std::int64_t>(thread.block_x()) * thread.count() + thread.index();
  const int width = params.from.width, pieces = width / kDequantisedChannels;
  if (piece >= static_cast<std::int64_t>(params.count) * pieces) {
    return;
  }
  const int sequence = thread.block_y(), row = static_cast<int>(piece / pieces);
  const int channel = static_cast<int>(piece % pieces) * kDequantisedChannels;
  const int group = channel / kScaledChannels * kScaledChannels;
  const RowPlace place = row_place(params.from, sequence, params.first + row, group);
  auto* to = static_cast<std::uint32_t*>(params.to) +
             ((static_cast<std::int64_t>(sequence) * params.count + row) * width + channel) / 2;
  KVC_UNROLL
  for (int i = 0; i < kDequantisedChannels; i += 2) {
    const int at = channel - group + i;
    to[i / 2] = pack_pair<T>(stored_number(params.from, place, at),
                             stored_number(params.from, place, at + 1));
  }
}

}  // namespace kvc

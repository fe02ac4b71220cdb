// Grid: (channels in chunks of the block's threads, rows). A thread takes one channel.
#pragma once

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/embed_rows.h"
#include "runtime/kernels/cuda/few_rows_product_body.h"

namespace kvc {

template <class Thread>
KVC_DEVICE void embed_rows_body(const EmbedRows& params, Thread& thread) {
  const int channel = thread.block_x() * thread.count() + thread.index(), row = thread.block_y();
  if (channel >= params.width) {
    return;
  }
  const std::int64_t id = params.ids[row];
  float x;
  if (params.scales != nullptr) {
    const int groups = weight_groups(params.width);
    const auto code =
        static_cast<const std::int8_t*>(params.table)[id * groups * kWeightScaleGroup + channel];
    const auto scale =
        static_cast<const Float16*>(params.scales)[id * groups + channel / kWeightScaleGroup];
    x = to_float(scale) * static_cast<float>(code);
  } else {
    const auto bits = static_cast<const std::uint16_t*>(params.table)[id * params.width + channel];
    x = params.element == DeviceElement::kBFloat16 ? to_float(BFloat16{bits})
                                                   : to_float(Float16{bits});
  }
  params.output[static_cast<std::int64_t>(row) * params.width + channel] = params.scale * x;
}

}  // namespace kvc

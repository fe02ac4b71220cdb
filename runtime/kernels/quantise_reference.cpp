#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"
#include "runtime/kernels/quantise.h"

namespace kvc {
namespace {

// Numbers that share a scale, as (row, channel) rectangles.
struct Shared {
  std::int64_t first_row, rows, first_channel, channels;
};

float read_number(const QuantiseParams& params, std::int64_t row, std::int64_t channel) {
  const void* block = params.from;
  const KvRows rows{&block, params.count, params.count, params.from_element};
  return kv_element(rows, params.width, params.head_dim, row, channel);
}

void write_code(const QuantiseParams& params, std::uint8_t* codes, std::int64_t channel, int code) {
  const std::int64_t group = quantised_group(params.head_dim);
  const CodePlace in_run = code_place(params.element, group, channel % group);
  const std::int64_t run = channel / group * (group * element_bits(params.element) / 8);
  std::uint8_t& byte = codes[run + in_run.byte];
  byte = static_cast<std::uint8_t>((byte & ~(largest_code(params.element) << in_run.shift)) |
                                   code << in_run.shift);
}

void quantise_shared(const QuantiseParams& params, const Shared& shared) {
  float smallest = INFINITY, largest = -INFINITY;
  for (std::int64_t row = shared.first_row; row < shared.first_row + shared.rows; ++row) {
    for (std::int64_t i = 0; i < shared.channels; ++i) {
      const float x = read_number(params, row, shared.first_channel + i);
      smallest = std::min(smallest, x);
      largest = std::max(largest, x);
    }
  }
  const auto levels = static_cast<float>(largest_code(params.element));
  const std::uint16_t minimum_bits = narrow_float16(smallest, Rounding::kDown);
  const float minimum = widen_float16(minimum_bits);
  const std::uint16_t scale_bits = narrow_float16((largest - minimum) / levels, Rounding::kUp);
  const float scale = widen_float16(scale_bits), inverse = scale == 0 ? 0 : 1 / scale;
  const void* block = params.to;
  const KvRows rows{&block, params.count, params.count, params.element, params.scales};
  const bool per_row = params.scales == KvScales::kPerRow;
  for (std::int64_t row = shared.first_row; row < shared.first_row + shared.rows; ++row) {
    const KvRowPlace place = kv_row_place(rows, params.width, params.head_dim, row);
    auto* codes = const_cast<std::uint8_t*>(place.codes);
    for (std::int64_t channel = shared.first_channel;
         channel < shared.first_channel + shared.channels; ++channel) {
      const float code = std::nearbyint((read_number(params, row, channel) - minimum) * inverse);
      const float allowed = code > 0 ? std::min(code, levels) : 0;  // 0 for what is no number
      write_code(params, codes, channel, static_cast<int>(allowed));
    }
  }
  auto* scales = const_cast<std::uint8_t*>(
      kv_row_place(rows, params.width, params.head_dim, shared.first_row).scales);
  const std::int64_t index =
      per_row ? 2 * (shared.first_channel / shared.channels) : shared.first_channel;
  std::memcpy(scales + 2 * index, &scale_bits, 2);
  std::memcpy(scales + 2 * (index + (per_row ? 1 : params.width)), &minimum_bits, 2);
}

}  // namespace

void quantise_rows_reference(const QuantiseParams& params) {
  const bool per_row = params.scales == KvScales::kPerRow;
  const std::int64_t rows = per_row ? 1 : kQuantisedRows;
  const std::int64_t channels = per_row ? quantised_group(params.head_dim) : 1;
  for (std::int64_t row = 0; row < params.count; row += rows) {
    for (std::int64_t channel = 0; channel < params.width; channel += channels) {
      quantise_shared(params, {row, rows, channel, channels});
    }
  }
}

void dequantise_rows_reference(const DequantiseParams& params) {
  for (std::int64_t row = params.first; row < params.last; ++row) {
    for (std::int64_t channel = 0; channel < params.width; ++channel) {
      const float x = kv_element(params.rows, params.width, params.head_dim, row, channel);
      const std::int64_t index = (row - params.first) * params.width + channel;
      if (params.to_element == KvElement::kFloat32) {
        static_cast<float*>(params.to)[index] = x;
      } else {
        static_cast<std::uint16_t*>(params.to)[index] = params.to_element == KvElement::kBFloat16
                                                            ? narrow_bfloat16(x)
                                                            : narrow_float16(x, Rounding::kNearest);
      }
    }
  }
}

}  // namespace kvc

#include "runtime/kernels/quantise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/dequantise.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "runtime/kernels/fast_narrow.h"
#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"

// Plain loops that the compiler vectorises, once for each target, without contraction of products and sums.
HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {

constexpr std::int64_t kStrip = 64;  // channels at a time: a multiple of every group

// For whole groups, as pack_codes left them.
template <int kBits>
void unpack_codes(const std::uint8_t* from, std::int64_t count, std::int64_t group,
                  std::uint8_t* codes) {
  const std::int64_t bytes = group * kBits / 8;
  for (std::int64_t first = 0; first < count; first += group, from += bytes) {
    for (int part = 0; part < 8 / kBits; ++part) {
      for (std::int64_t i = 0; i < bytes; ++i) {
        codes[first + part * bytes + i] = from[i] >> (part * kBits) & ((1 << kBits) - 1);
      }
    }
  }
}

inline void narrow(const float* from, std::int64_t count, KvElement element, void* to,
                   std::int64_t first) {
  if (element == KvElement::kFloat32) {
    std::memcpy(static_cast<float*>(to) + first, from,
                static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  auto* out = static_cast<std::uint16_t*>(to) + first;
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] =
        element == KvElement::kBFloat16 ? narrow_bfloat16(from[i]) : fast_nearest_float16(from[i]);
  }
}

// Channels first .. first + count - 1 of one row.
inline void dequantise_strip(const DequantiseParams& params, const KvRowPlace& place,
                             std::int64_t first, std::int64_t count, float* to) {
  const std::int64_t group = quantised_group(params.head_dim);
  std::uint8_t unpacked[kStrip];
  const std::uint8_t* codes = unpacked;
  switch (params.rows.element) {
    case KvElement::kInt4:
      unpack_codes<4>(place.codes + first / 2, count, group, unpacked);
      break;
    case KvElement::kInt2:
      unpack_codes<2>(place.codes + first / 4, count, group, unpacked);
      break;
    default:
      codes = place.codes + first;
  }
  if (params.rows.scales == KvScales::kPerChannel) {
    for (std::int64_t c = 0; c < count; ++c) {
      const float scale = fast_widen_float16(load_as<std::uint16_t>(place.scales, first + c));
      to[c] = fast_widen_float16(load_as<std::uint16_t>(place.scales, params.width + first + c)) +
              scale * static_cast<float>(codes[c]);
    }
    return;
  }
  for (std::int64_t c = 0; c < count; c += group) {
    const std::int64_t index = 2 * ((first + c) / group);
    const float scale = fast_widen_float16(load_as<std::uint16_t>(place.scales, index));
    const float minimum = fast_widen_float16(load_as<std::uint16_t>(place.scales, index + 1));
    for (std::int64_t i = c; i < c + group; ++i) {
      to[i] = minimum + scale * static_cast<float>(codes[i]);
    }
  }
}

void dequantise(const DequantiseParams& params) {
  float numbers[kStrip];
  for (std::int64_t row = params.first; row < params.last; ++row) {
    const KvRowPlace place = kv_row_place(params.rows, params.width, params.head_dim, row);
    for (std::int64_t first = 0; first < params.width; first += kStrip) {
      const std::int64_t count = std::min(kStrip, params.width - first);
      dequantise_strip(params, place, first, count, numbers);
      narrow(numbers, count, params.to_element, params.to,
             (row - params.first) * params.width + first);
    }
  }
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(dequantise);

void dequantise_rows(const DequantiseParams& params) {
  is_quantised(params.rows.element) ? HWY_DYNAMIC_DISPATCH(dequantise)(params)
                                    : dequantise_rows_reference(params);
}

}  // namespace kvc
#endif  // HWY_ONCE

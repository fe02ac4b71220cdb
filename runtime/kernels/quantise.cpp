#include "runtime/kernels/quantise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/quantise.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/kernels/fast_narrow.h"
#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"

// Plain loops that the compiler vectorises, once for each target. Compiled without contraction of
// products and sums, so that the codes are the reference's.
HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {

constexpr std::int64_t kStrip = 64;  // channels at a time: a multiple of every group

// The nearest integer of a number from 0 to 2^22, ties to even.
inline float nearest_integer(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: floats there are integers
  return (x + kMagic) - kMagic;
}

inline std::uint8_t code_of(float x, float minimum, float inverse, float levels) {
  float code = (x - minimum) * inverse;
  code = code > 0 ? code : 0;
  code = code < levels ? code : levels;
  return static_cast<std::uint8_t>(static_cast<int>(nearest_integer(code)));
}

inline void widen(const void* from, KvElement element, std::int64_t first, std::int64_t count,
                  float* to) {
  switch (element) {
    case KvElement::kBFloat16:
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] = widen_bfloat16(load_as<std::uint16_t>(from, first + i));
      }
      break;
    case KvElement::kFloat16:
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] = fast_widen_float16(load_as<std::uint16_t>(from, first + i));
      }
      break;
    default:
      std::memcpy(to, static_cast<const float*>(from) + first,
                  static_cast<std::size_t>(count) * sizeof(float));
  }
}

// Whole groups of codes, of which a byte holds 8 / kBits.
template <int kBits>
void pack_codes(const std::uint8_t* codes, std::int64_t count, std::int64_t group,
                std::uint8_t* to) {
  const std::int64_t bytes = group * kBits / 8;
  for (std::int64_t first = 0; first < count; first += group, to += bytes) {
    for (std::int64_t i = 0; i < bytes; ++i) {
      int packed = 0;
      for (int part = 0; part < 8 / kBits; ++part) {
        packed |= codes[first + part * bytes + i] << (part * kBits);
      }
      to[i] = static_cast<std::uint8_t>(packed);
    }
  }
}

// `count` codes as the row holds them; of less than a byte: whole groups.
inline void store_codes(const std::uint8_t* codes, std::int64_t count, KvElement element,
                        std::int64_t group, std::uint8_t* to) {
  switch (element) {
    case KvElement::kInt4:
      return pack_codes<4>(codes, count, group, to);
    case KvElement::kInt2:
      return pack_codes<2>(codes, count, group, to);
    default:
      std::memcpy(to, codes, static_cast<std::size_t>(count));
  }
}

struct Scale {
  std::uint16_t scale, minimum;  // float16
  float minimum_value, inverse;
};

inline Scale scale_of(float smallest, float largest, float levels) {
  Scale found;
  found.minimum = fast_float16_below(smallest);
  found.minimum_value = fast_widen_float16(found.minimum);
  found.scale = fast_float16_above((largest - found.minimum_value) / levels);
  const float scale = fast_widen_float16(found.scale);
  found.inverse = scale == 0 ? 0 : 1 / scale;
  return found;
}

template <int kGroup>
void quantise_row(const QuantiseParams& params, const float* row, float levels, std::uint8_t* to) {
  const int bits = element_bits(params.element);
  std::uint8_t* scales = to + params.width * bits / 8;
  for (std::int64_t first = 0; first < params.width; first += kGroup) {
    float low[kGroup], high[kGroup];
    std::copy_n(row + first, kGroup, low);
    std::copy_n(row + first, kGroup, high);
    for (int half = kGroup / 2; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) {
        low[i] = low[i + half] < low[i] ? low[i + half] : low[i];
        high[i] = high[i + half] > high[i] ? high[i + half] : high[i];
      }
    }
    const Scale found = scale_of(low[0], high[0], levels);
    std::uint8_t codes[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      codes[i] = code_of(row[first + i], found.minimum_value, found.inverse, levels);
    }
    store_codes(codes, kGroup, params.element, kGroup, to + first * bits / 8);
    std::memcpy(scales + 4 * (first / kGroup), &found.scale, 2);
    std::memcpy(scales + 4 * (first / kGroup) + 2, &found.minimum, 2);
  }
}

inline void quantise_per_row(const QuantiseParams& params, float levels) {
  const std::int64_t bytes =
      kv_rows_bytes(1, params.width, params.head_dim, params.element, params.scales);
  std::vector<float> row(static_cast<std::size_t>(params.width));
  auto* to = static_cast<std::uint8_t*>(params.to);
  for (std::int64_t i = 0; i < params.count; ++i, to += bytes) {
    widen(params.from, params.from_element, i * params.width, params.width, row.data());
    const std::int64_t group = quantised_group(params.head_dim);
    const auto with = [&]<int... kGroups>(std::integer_sequence<int, kGroups...>) {
      (void)((group == kGroups && (quantise_row<kGroups>(params, row.data(), levels, to), true)) ||
             ...);
    };
    with(std::integer_sequence<int, 32, 16, 8, 4, 2, 1>());
  }
}

// Channels first .. first + count - 1 of the kQuantisedRows rows from `row` on.
inline void quantise_strip(const QuantiseParams& params, std::int64_t row, std::int64_t first,
                           std::int64_t count, float levels, std::uint8_t* to) {
  const std::int64_t row_bytes = params.width * element_bits(params.element) / 8;
  float numbers[kQuantisedRows][kStrip], low[kStrip], high[kStrip], minimum[kStrip],
      inverse[kStrip];
  for (std::int64_t i = 0; i < kQuantisedRows; ++i) {
    widen(params.from, params.from_element, (row + i) * params.width + first, count, numbers[i]);
  }
  std::copy_n(numbers[0], count, low);
  std::copy_n(numbers[0], count, high);
  for (std::int64_t i = 1; i < kQuantisedRows; ++i) {
    for (std::int64_t c = 0; c < count; ++c) {
      low[c] = numbers[i][c] < low[c] ? numbers[i][c] : low[c];
      high[c] = numbers[i][c] > high[c] ? numbers[i][c] : high[c];
    }
  }
  std::uint8_t* scales = to + kQuantisedRows * row_bytes;
  for (std::int64_t c = 0; c < count; ++c) {
    const Scale found = scale_of(low[c], high[c], levels);
    minimum[c] = found.minimum_value;
    inverse[c] = found.inverse;
    std::memcpy(scales + 2 * (first + c), &found.scale, 2);
    std::memcpy(scales + 2 * (params.width + first + c), &found.minimum, 2);
  }
  const std::int64_t offset = first * element_bits(params.element) / 8;
  for (std::int64_t i = 0; i < kQuantisedRows; ++i) {
    std::uint8_t codes[kStrip];
    for (std::int64_t c = 0; c < count; ++c) {
      codes[c] = code_of(numbers[i][c], minimum[c], inverse[c], levels);
    }
    store_codes(codes, count, params.element, quantised_group(params.head_dim),
                to + i * row_bytes + offset);
  }
}

void quantise(const QuantiseParams& params) {
  const auto levels = static_cast<float>(largest_code(params.element));
  if (params.scales == KvScales::kPerRow) {
    return quantise_per_row(params, levels);
  }
  const std::int64_t bytes =
      kv_rows_bytes(kQuantisedRows, params.width, params.head_dim, params.element, params.scales);
  auto* to = static_cast<std::uint8_t*>(params.to);
  for (std::int64_t row = 0; row < params.count; row += kQuantisedRows, to += bytes) {
    for (std::int64_t first = 0; first < params.width; first += kStrip) {
      quantise_strip(params, row, first, std::min(kStrip, params.width - first), levels, to);
    }
  }
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(quantise);

void quantise_rows(const QuantiseParams& params) { HWY_DYNAMIC_DISPATCH(quantise)(params); }

}  // namespace kvc
#endif  // HWY_ONCE

// Sources of a tile's numbers for a kernel, a pair of vectors at a time: rows in place, codes with
// scales per row, keys that are rotated while they are read.
#if defined(KVC_RUNTIME_KERNELS_ROW_SOURCES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_ROW_SOURCES_INL_H_
#undef KVC_RUNTIME_KERNELS_ROW_SOURCES_INL_H_
#else
#define KVC_RUNTIME_KERNELS_ROW_SOURCES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <vector>

#include "runtime/kernels/kv_element.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

using Wide = hn::ScalableTag<float>;
using Vec = hn::Vec<Wide>;

inline std::int64_t wide_lanes() { return static_cast<std::int64_t>(hn::Lanes(Wide())); }

inline constexpr std::int64_t kRun = 32;  // channels that share a scale; a vector of 16-bit numbers

// Numbers of a row from `channel` on as float32; codes as whole numbers.
struct Float32Row {
  static constexpr int kBits = 32;
  static Vec load(const std::uint8_t* row, std::int64_t channel) {
    return hn::LoadU(Wide(), reinterpret_cast<const float*>(row) + channel);
  }
};
template <class T>
struct HalfRow {
  static constexpr int kBits = 16;
  static Vec load(const std::uint8_t* row, std::int64_t channel) {
    return hn::PromoteTo(
        Wide(), hn::LoadU(hn::Rebind<T, Wide>(), reinterpret_cast<const T*>(row) + channel));
  }
};
using BFloat16Row = HalfRow<hwy::bfloat16_t>;
using Float16Row = HalfRow<hwy::float16_t>;
struct Int8Row {
  static constexpr int kBits = 8;
  static Vec load(const std::uint8_t* row, std::int64_t channel) {
    const auto codes = hn::LoadU(hn::Rebind<std::uint8_t, Wide>(), row + channel);
    return hn::ConvertTo(Wide(), hn::PromoteTo(hn::Rebind<std::int32_t, Wide>(), codes));
  }
};
// Runs of 32 channels.
struct Int4Row {
  static constexpr int kBits = 4;
  static Vec load(const std::uint8_t* row, std::int64_t channel) {
    const hn::Rebind<std::int32_t, Wide> whole;
    const std::int64_t in_run = channel % 32;
    const auto both = hn::PromoteTo(
        whole, hn::LoadU(hn::Rebind<std::uint8_t, Wide>(), row + channel / 32 * 16 + in_run % 16));
    return hn::ConvertTo(Wide(),
                         in_run < 16 ? hn::And(both, hn::Set(whole, 15)) : hn::ShiftRight<4>(both));
  }
};

// Runs of 32 channels: a quarter of a run is 8 bytes.
struct Int2Row {
  static constexpr int kBits = 2;
  static Vec load(const std::uint8_t* row, std::int64_t channel) {
    const hn::Rebind<std::int32_t, Wide> whole;
    const std::int64_t in_run = channel % 32;
    const auto shift = static_cast<int>(in_run / 8 * kBits);
    const auto codes = shifted(whole, row + channel / 32 * 8, in_run % 8, shift);
    return hn::ConvertTo(Wide(), hn::And(codes, hn::Set(whole, 3)));
  }

 private:
  // Bytes of a vector's channels, from `byte` of the run on, with the codes in the lowest bits.
  template <class D>
  static hn::Vec<D> shifted(D whole, const std::uint8_t* run, std::int64_t byte, int shift) {
    const hn::Rebind<std::uint8_t, D> bytes;
    if constexpr (hn::MaxLanes(D()) <= 8) {
      return hn::ShiftRightSame(hn::PromoteTo(whole, hn::LoadU(bytes, run + byte)), shift);
    } else {  // two quarters
      static_assert(hn::MaxLanes(D()) == 16);
      const hn::Repartition<std::uint64_t, decltype(bytes)> runs;
      const auto both = hn::BitCast(bytes, hn::Set(runs, load_as<std::uint64_t>(run, 0)));
      const auto quarter = hn::ShiftRight<3>(hn::Iota(whole, 0));
      const auto shifts = hn::Add(hn::Add(quarter, quarter), hn::Set(whole, shift));
      return hn::Shr(hn::PromoteTo(whole, both), shifts);
    }
  }
};

// A source returns pair `step` of vectors of its tile's row, in one of the orders below, and the bytes of
// a row that a step reads.

template <class Row>
struct PlainRows {
  const std::uint8_t* base;  // the head's numbers of the tile's first row
  std::int64_t stride;       // bytes from row to row

  std::int64_t step_bytes() const { return 2 * wide_lanes() * Row::kBits / 8; }
  // Two vectors: even and odd channels of bfloat16 rows, consecutive ones of others.
  void load_pair(std::int64_t row, std::int64_t step, Vec* to) const {
    const std::uint8_t* from = base + row * stride;
    const std::int64_t channel = 2 * step * wide_lanes();
    if constexpr (std::is_same_v<Row, BFloat16Row>) {  // the even and the odd ones
      const hn::Repartition<std::uint32_t, Wide> bits;
      const auto both = hn::LoadU(bits, reinterpret_cast<const std::uint32_t*>(from + 2 * channel));
      to[0] = hn::BitCast(Wide(), hn::ShiftLeft<16>(both));
      to[1] = hn::BitCast(Wide(), hn::And(both, hn::Set(bits, 0xFFFF0000u)));
    } else {
      to[0] = Row::load(from, channel);
      to[1] = Row::load(from, channel + wide_lanes());
    }
  }
};

// Codes with a scale and a minimum for every 32 channels of a row.
template <class Row>
struct ScaledRows {
  const std::uint8_t* base;
  std::int64_t stride;
  const float* scales;  // of the tile's first row: {scale, minimum} of the head's groups
  std::int64_t scales_stride;

  std::int64_t step_bytes() const { return 2 * wide_lanes() * Row::kBits / 8; }
  void load_pair(std::int64_t row, std::int64_t step, Vec* to) const {
    const std::uint8_t* from = base + row * stride;
    const std::int64_t channel = 2 * step * wide_lanes();
    const float* of_group = scales + row * scales_stride + channel / 32 * 2;
    const Vec scale = hn::Set(Wide(), of_group[0]), minimum = hn::Set(Wide(), of_group[1]);
    to[0] = hn::MulAdd(scale, Row::load(from, channel), minimum);
    to[1] = hn::MulAdd(scale, Row::load(from, channel + wide_lanes()), minimum);
  }
};

// Raw keys whose channels all rotate, pairs (i, i + half): vectors of first and of second halves.
template <class Row>
struct TurnedRows {
  const std::uint8_t* base;
  std::int64_t stride, half;
  const float* angles;   // [rows, 2, half]: cos and then sin
  const float* scale;    // of the head's channels; numbers: null
  const float* minimum;  // likewise; numbers: what is added to them, or null

  std::int64_t step_bytes() const { return 2 * wide_lanes() * Row::kBits / 8; }
  Vec key(const std::uint8_t* from, std::int64_t channel) const {
    const Vec x = Row::load(from, channel);
    if constexpr (Row::kBits > 8) {
      return minimum == nullptr ? x : hn::Add(x, hn::LoadU(Wide(), minimum + channel));
    } else {
      return hn::MulAdd(hn::LoadU(Wide(), scale + channel), x,
                        hn::LoadU(Wide(), minimum + channel));
    }
  }
  void load_pair(std::int64_t row, std::int64_t step, Vec* to) const {
    const std::uint8_t* from = base + row * stride;
    const std::int64_t channel = step * wide_lanes();
    const Vec a = key(from, channel), b = key(from, channel + half);
    const float* turn = angles + 2 * row * half + channel;
    const Vec c = hn::LoadU(Wide(), turn), s = hn::LoadU(Wide(), turn + half);
    to[0] = hn::NegMulAdd(b, s, hn::Mul(a, c));
    to[1] = hn::MulAdd(a, s, hn::Mul(b, c));
  }
};

// Orders of channels: index of every channel of a head in the kernel's order.
inline std::vector<std::int32_t> order_in_place(std::int64_t head_dim) {
  std::vector<std::int32_t> order;
  for (std::int64_t channel = 0; channel < head_dim; ++channel) {
    order.push_back(static_cast<std::int32_t>(channel));
  }
  return order;
}
inline std::vector<std::int32_t> order_even_odd(std::int64_t head_dim) {
  std::vector<std::int32_t> order;
  const std::int64_t run = 2 * wide_lanes();
  for (std::int64_t channel = 0; channel < head_dim; ++channel) {
    const std::int64_t in_run = channel % run;
    order.push_back(
        static_cast<std::int32_t>(channel - in_run + in_run / 2 + in_run % 2 * wide_lanes()));
  }
  return order;
}
// Order of channels in pairs of rows: of every eight, four are in the first vector of a run.
inline std::vector<std::int32_t> order_of_pairs(std::int64_t channels) {
  std::vector<std::int32_t> order;
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const std::int64_t in_run = channel % kRun;
    order.push_back(static_cast<std::int32_t>(channel - in_run + in_run % 8 / 4 * 16 +
                                              in_run / 8 * 4 + in_run % 4));
  }
  return order;
}
inline std::vector<std::int32_t> order_halves(std::int64_t head_dim) {
  std::vector<std::int32_t> order;
  for (std::int64_t channel = 0; channel < head_dim; ++channel) {
    const std::int64_t in_half = channel % (head_dim / 2), lane = in_half % wide_lanes();
    order.push_back(static_cast<std::int32_t>(2 * (in_half - lane) + lane +
                                              channel / (head_dim / 2) * wide_lanes()));
  }
  return order;
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

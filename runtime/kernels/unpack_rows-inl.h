// One head's rows of any element as float32 numbers.
#if defined(KVC_RUNTIME_KERNELS_UNPACK_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_UNPACK_ROWS_INL_H_
#undef KVC_RUNTIME_KERNELS_UNPACK_ROWS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_UNPACK_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/kv_element.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// `count` codes or numbers of one row as float32, a vector at a time and the rest one by one.
template <class D, class T>
hn::Vec<D> widen(D d, const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    const hn::Rebind<std::int32_t, D> wide;
    return hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(hn::Rebind<std::uint8_t, D>(), from)));
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from));
  }
}
inline float widen_one(const float* from) { return *from; }
inline float widen_one(const std::uint8_t* from) { return *from; }
inline float widen_one(const hwy::bfloat16_t* from) {
  return widen_bfloat16(load_as<std::uint16_t>(from, 0));
}
inline float widen_one(const hwy::float16_t* from) {
  return widen_float16(load_as<std::uint16_t>(from, 0));
}
template <class T>
void widen_row(const T* from, std::int64_t count, float* to) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(widen(d, from + i), d, to + i);
  }
  for (; i < count; ++i) {
    to[i] = widen_one(from + i);
  }
}

// Codes of kBits of `count` channels, runs of `group` (a power of two from 8 / kBits on), to one float
// each.
template <int kBits>
void widen_packed(const std::uint8_t* from, std::int64_t count, std::int64_t group, float* to) {
  constexpr int kLargest = (1 << kBits) - 1;
  const hn::ScalableTag<float> d;
  const hn::Rebind<std::int32_t, decltype(d)> wide;
  const hn::Rebind<std::uint8_t, decltype(d)> narrow;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t bytes = group * kBits / 8;
  for (std::int64_t run = 0; run < count; run += group, from += bytes, to += group) {
    std::int64_t i = 0;
    for (; i + lanes <= bytes; i += lanes) {
      auto packed = hn::PromoteTo(wide, hn::LoadU(narrow, from + i));
      for (int part = 0; part < 8 / kBits; ++part, packed = hn::ShiftRight<kBits>(packed)) {
        hn::StoreU(hn::ConvertTo(d, hn::And(packed, hn::Set(wide, kLargest))), d,
                   to + part * bytes + i);
      }
    }
    for (; i < bytes; ++i) {
      for (int part = 0; part < 8 / kBits; ++part) {
        to[part * bytes + i] = static_cast<float>(from[i] >> (part * kBits) & kLargest);
      }
    }
  }
}

// x = minimum + scale * x in float32, a scale for every number.
inline void scale_row(const float* scale, const float* minimum, std::int64_t count, float* x) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, scale + i), hn::LoadU(d, x + i), hn::LoadU(d, minimum + i)),
               d, x + i);
  }
  for (; i < count; ++i) {
    x[i] = minimum[i] + scale[i] * x[i];
  }
}
// The same, one scale for all of them.
inline void scale_run(float scale, float minimum, std::int64_t count, float* x) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto s = hn::Set(d, scale), m = hn::Set(d, minimum);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::MulAdd(s, hn::LoadU(d, x + i), m), d, x + i);
  }
  for (; i < count; ++i) {
    x[i] = minimum + scale * x[i];
  }
}

// Channels first_channel .. first_channel + count - 1 (whole heads) of rows in one block and, if
// channels have scales, in one group of rows.
struct RowsPiece {
  const KvRows* rows;
  std::int64_t width, head_dim;  // of the rows
  std::int64_t first_channel, count;
};

inline void widen_codes(const RowsPiece& piece, const std::uint8_t* codes, float* to) {
  const std::int64_t group = quantised_group(piece.head_dim);
  switch (piece.rows->element) {
    case KvElement::kInt4:
      return widen_packed<4>(codes + piece.first_channel / 2, piece.count, group, to);
    case KvElement::kInt2:
      return widen_packed<2>(codes + piece.first_channel / 4, piece.count, group, to);
    default:
      return widen_row(codes + piece.first_channel, piece.count, to);
  }
}

// A tile's scales as float32, of all heads.
class TileScales {
 public:
  TileScales(std::int64_t width, std::int64_t head_dim) : width_(width), head_dim_(head_dim) {}

  // Scales of a tile's row: {scale, minimum} of every group of channels; or the scales and then the
  // minima of all channels.
  const float* row(std::int64_t line) const {
    return memory_.data() + (per_row_ ? line : (in_group_ + line) / kQuantisedRows) * stride_;
  }
  std::int64_t stride() const { return stride_; }

  // Rows of one block.
  void set(const KvRows& rows, std::int64_t first, std::int64_t count) {
    if (!is_quantised(rows.element)) {
      return;
    }
    per_row_ = rows.scales == KvScales::kPerRow;
    in_group_ = first % rows.block_rows % kQuantisedRows;
    stride_ = per_row_ ? 2 * (width_ / quantised_group(head_dim_)) : 2 * width_;
    const std::int64_t step = per_row_ ? 1 : kQuantisedRows;
    const std::int64_t lines =
        per_row_ ? count : (in_group_ + count + kQuantisedRows - 1) / kQuantisedRows;
    const std::int64_t bytes = kv_rows_bytes(step, width_, head_dim_, rows.element, rows.scales);
    const std::uint8_t* from = kv_row_place(rows, width_, head_dim_, first).scales;
    memory_.resize(std::max(memory_.size(), static_cast<std::size_t>(lines * stride_)));
    for (std::int64_t line = 0; line < lines; ++line, from += bytes) {
      widen_row(reinterpret_cast<const hwy::float16_t*>(from), stride_,
                memory_.data() + line * stride_);
    }
  }

 private:
  std::int64_t width_, head_dim_, stride_ = 0, in_group_ = 0;
  bool per_row_ = true;
  AlignedVector<float> memory_;
};

// Unpacks the row with numbers or codes `numbers`: line `line` of the tile of `scales`.
inline void unpack_row(const RowsPiece& piece, const std::uint8_t* numbers,
                       const TileScales& scales, std::int64_t line, float* to) {
  const KvRows& rows = *piece.rows;
  switch (rows.element) {
    case KvElement::kFloat32:
      return widen_row(reinterpret_cast<const float*>(numbers) + piece.first_channel, piece.count,
                       to);
    case KvElement::kBFloat16:
      return widen_row(reinterpret_cast<const hwy::bfloat16_t*>(numbers) + piece.first_channel,
                       piece.count, to);
    case KvElement::kFloat16:
      return widen_row(reinterpret_cast<const hwy::float16_t*>(numbers) + piece.first_channel,
                       piece.count, to);
    default:
      break;
  }
  widen_codes(piece, numbers, to);
  if (rows.scales == KvScales::kPerChannel) {
    const float* of_channels = scales.row(line) + piece.first_channel;
    return scale_row(of_channels, of_channels + piece.width, piece.count, to);
  }
  const std::int64_t group = quantised_group(piece.head_dim);
  const float* of_group = scales.row(line) + 2 * (piece.first_channel / group);
  for (std::int64_t run = 0; run < piece.count; run += group, of_group += 2) {
    scale_run(of_group[0], of_group[1], group, to + run);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

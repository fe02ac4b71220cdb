// Sums of values tile by tile, head by head: in place if vectors fit, the rest through rows of float32
// numbers.
#if defined(KVC_RUNTIME_KERNELS_VALUE_READER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_VALUE_READER_INL_H_
#undef KVC_RUNTIME_KERNELS_VALUE_READER_INL_H_
#else
#define KVC_RUNTIME_KERNELS_VALUE_READER_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/bfloat16_dot-inl.h"
#include "runtime/kernels/cpu_features.h"
#include "runtime/kernels/int16_sums-inl.h"
#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

class ValueReader {
 public:
  // Heads of `channels` numbers from `first_channel` of rows of `width` on, in groups of
  // quantised_group(head_dim).
  ValueReader(const KvRows& rows, std::int64_t width, std::int64_t head_dim, std::int64_t channels,
              std::int64_t first_channel = 0)
      : tile_(rows, width, head_dim),
        channels_(channels),
        first_channel_(first_channel),
        width_(padded_width(channels)),
        scaled_(is_quantised(rows.element) && rows.scales == KvScales::kPerRow &&
                width_ == channels && channels % 32 == 0 && first_channel % 32 == 0 &&
                quantised_group(head_dim) == 32),
        in_place_(scaled_                      ? channels
                  : is_quantised(rows.element) ? 0
                                               : channels / (2 * wide_lanes()) * 2 * wide_lanes()),
        dots_(KVC_HAS_BFLOAT16_DOT && rows.element == KvElement::kBFloat16 && in_place_ > 0 &&
              has_avx512_bf16()),
        numbers_(static_cast<std::size_t>(kTileRows * (width_ - in_place_))) {}

  std::int64_t width() const { return width_; }
  // Weights are exponentiate()'s in bfloat16.
  bool takes_bfloat16() const { return dots_; }
  ChannelOrder order() const {
    ChannelOrder order = order_in_place(channels_), of_vectors;
    if (dots_ || (KVC_HAS_INT16_DOT && scaled_)) {
      of_vectors = order_of_pairs(in_place_);
    } else if (tile_.rows().element == KvElement::kBFloat16) {
      of_vectors = order_even_odd(in_place_);
    }
    std::copy(of_vectors.begin(), of_vectors.end(), order.begin());
    return order;
  }
  std::int64_t rows_together(std::int64_t first) const {
    const KvRows& rows = tile_.rows();
    return has_row_groups(rows) ? kQuantisedRows - first % kQuantisedRows
                                : rows_in_block(rows, first);
  }
  void begin_tile(std::int64_t first, std::int64_t count, std::int64_t last) {
    count_ = count;
    tile_.begin(first, count, last);
  }

  void accumulate(float* output, std::int64_t kv_head, const float* weights) {
    const std::int64_t channel = first_channel_ + kv_head * channels_;
    const auto body = [&](const auto& values, std::int64_t from, std::int64_t to) {
      accumulate_tile(values, output + from, width_, (to - from) / (2 * wide_lanes()), count_,
                      weights, tile_.ahead());
    };
    if (in_place_ < channels_) {
      const std::int64_t left = width_ - in_place_;
      tile_.unpack(0, count_, channel + in_place_, channels_ - in_place_, left, numbers_.data());
      body(PlainRows<Float32Row>{reinterpret_cast<const std::uint8_t*>(numbers_.data()),
                                 left * std::int64_t{sizeof(float)}},
           in_place_, width_);
    }
    if (in_place_ == 0) {
      return;
    }
#if KVC_HAS_BFLOAT16_DOT
    if (dots_) {
      pairs_.set(weights, count_);
      return bfloat16_accumulate_tile(tile_.at(0, channel), tile_.stride(), in_place_, width_,
                                      count_, pairs_, output, tile_.ahead());
    }
#endif
    with_element(tile_.rows().element, [&](auto row) {
      using Row = decltype(row);
      if constexpr (Row::kBits > 8) {
        body(PlainRows<Row>{tile_.at(0, channel), tile_.stride()}, 0, in_place_);
      } else {
#if KVC_HAS_INT16_DOT
        with_dot(vnni_, [&](auto vnni) {
          int16_accumulate_tile<Row, vnni()>(
              tile_.at(0, channel),
              tile_.at(0, tile_.width()) + channel / kRun * std::int64_t{2 * sizeof(std::uint16_t)},
              tile_.stride(), width_, count_, weights, weights_, output, tile_.ahead());
        });
#else
        body(ScaledRows<Row>{tile_.at(0, channel), tile_.stride(),
                             tile_.scales().row(0) + channel / 32 * 2, tile_.scales().stride()},
             0, in_place_);
#endif
      }
    });
  }

 private:
  TileRows tile_;
  std::int64_t channels_, first_channel_, width_;
  bool scaled_;
  std::int64_t in_place_;         // channels that are, the others go through
  bool dots_;                     // of bfloat16 numbers
  AlignedVector<float> numbers_;  // [kTileRows, width - in_place], zeros from `channels` on
  std::int64_t count_ = 0;
#if KVC_HAS_INT16_DOT
  bool vnni_ = has_avx512_vnni();
  Int16Weights weights_;
#endif
#if KVC_HAS_BFLOAT16_DOT
  Bfloat16Weights pairs_;
#endif
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Sums of values tile by tile, head by head: in place where vectors fit, otherwise through rows of float32
// numbers.
#if defined(KVC_RUNTIME_KERNELS_VALUE_READER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_VALUE_READER_INL_H_
#undef KVC_RUNTIME_KERNELS_VALUE_READER_INL_H_
#else
#define KVC_RUNTIME_KERNELS_VALUE_READER_INL_H_
#endif

#include <hwy/highway.h>

#include <vector>

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
        plain_(!is_quantised(rows.element) && width_ == channels),
        scaled_(is_quantised(rows.element) && rows.scales == KvScales::kPerRow &&
                width_ == channels && channels % 32 == 0 && first_channel % 32 == 0 &&
                quantised_group(head_dim) == 32),
        numbers_(plain_ || scaled_ ? 0 : static_cast<std::size_t>(kTileRows * width_)) {}

  std::int64_t width() const { return width_; }
  ChannelOrder order() const {
#if KVC_HAS_INT16_DOT
    if (scaled_) {
      return order_of_pairs(channels_);
    }
#endif
    return plain_ && tile_.rows().element == KvElement::kBFloat16 ? order_even_odd(channels_)
                                                                  : order_in_place(channels_);
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
    const auto body = [&](const auto& values) {
      accumulate_tile(values, output, width_, count_, weights, tile_.ahead());
    };
    const std::int64_t channel = first_channel_ + kv_head * channels_;
    if (!plain_ && !scaled_) {
      tile_.unpack(0, count_, channel, channels_, width_, numbers_.data());
      return body(PlainRows<Float32Row>{reinterpret_cast<const std::uint8_t*>(numbers_.data()),
                                        width_ * std::int64_t{sizeof(float)}});
    }
    with_element(tile_.rows().element, [&](auto row) {
      using Row = decltype(row);
      if constexpr (Row::kBits > 8) {
        body(PlainRows<Row>{tile_.at(0, channel), tile_.stride()});
      } else {
#if KVC_HAS_INT16_DOT
        with_dot(vnni_, [&](auto vnni) {
          int16_accumulate_tile<Row, vnni()>(
              tile_.at(0, channel), tile_.stride(), tile_.scales().row(0) + channel / 32 * 2,
              tile_.scales().stride(), width_, count_, weights, weights_, output, tile_.ahead());
        });
#else
        body(ScaledRows<Row>{tile_.at(0, channel), tile_.stride(),
                             tile_.scales().row(0) + channel / 32 * 2, tile_.scales().stride()});
#endif
      }
    });
  }

 private:
  TileRows tile_;
  std::int64_t channels_, first_channel_, width_;
  bool plain_, scaled_;
  std::vector<float> numbers_;  // [kTileRows, width], zeros from `channels` on
  std::int64_t count_ = 0;
#if KVC_HAS_INT16_DOT
  bool vnni_ = has_avx512_vnni();
  Int16Weights weights_;
#endif
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Reads a segment tile by tile, head by head: in place where vectors fit, otherwise through float32 rows.
#if defined(KVC_RUNTIME_KERNELS_SEGMENT_READER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_SEGMENT_READER_INL_H_
#undef KVC_RUNTIME_KERNELS_SEGMENT_READER_INL_H_
#else
#define KVC_RUNTIME_KERNELS_SEGMENT_READER_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/raw_keys-inl.h"
#include "runtime/kernels/row_sources-inl.h"
#include "runtime/kernels/unpack_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// How a tile's rows are read.
enum class Access { kPlain, kScaled, kTurned, kUnpacked };

inline Access key_access(const DecodeAttentionParams& params, const KvSegment& segment) {
  const std::int64_t pair = 2 * wide_lanes(), head_dim = params.head_dim;
  if (!segment.raw_key) {
    return !is_quantised(segment.key.element) && head_dim % pair == 0 ? Access::kPlain
                                                                      : Access::kUnpacked;
  }
  const RawKeys& raw = params.raw_keys;
  const bool whole = raw.norm == nullptr && !raw.rope.interleaved &&
                     2 * raw.rope.num_pairs == head_dim && head_dim % pair == 0;
  const bool runs = segment.key.element != KvElement::kInt4 || head_dim % 64 == 0;
  const bool scales =
      !is_quantised(segment.key.element) || segment.key.scales == KvScales::kPerChannel;
  return whole && runs && scales ? Access::kTurned : Access::kUnpacked;
}

inline Access value_access(const KvRows& rows, std::int64_t head_dim) {
  if (!is_quantised(rows.element)) {
    return head_dim % (2 * wide_lanes()) == 0 ? Access::kPlain : Access::kUnpacked;
  }
  return rows.scales == KvScales::kPerRow && head_dim % 32 == 0 ? Access::kScaled
                                                                : Access::kUnpacked;
}

inline ChannelOrder order_of(Access access, const KvRows& rows, std::int64_t head_dim) {
  return access == Access::kTurned ? order_halves(head_dim)
         : access == Access::kPlain && rows.element == KvElement::kBFloat16
             ? order_even_odd(head_dim)
             : order_in_place(head_dim);
}

class SegmentReader {
 public:
  SegmentReader(const DecodeAttentionParams& params, const KvSegment& segment)
      : params_(params),
        segment_(segment),
        width_((params.head_dim + 2 * wide_lanes() - 1) / (2 * wide_lanes()) * 2 * wide_lanes()),
        key_access_(key_access(params, segment)),
        value_access_(value_access(segment.value, params.head_dim)),
        angles_(segment.raw_key ? params.raw_keys.rope : RopeAngles{}, kTileRows),
        key_scales_(row_width(), params.head_dim),
        value_scales_(row_width(), params.head_dim),
        norm_(static_cast<std::size_t>(width_)),
        numbers_(static_cast<std::size_t>(kTileRows * width_)) {
    if (normalises()) {
      std::copy_n(params.raw_keys.norm, params.head_dim, norm_.begin());
    }
  }

  std::int64_t width() const { return width_; }
  ChannelOrder key_order() const { return order_of(key_access_, segment_.key, params_.head_dim); }
  ChannelOrder value_order() const {
    return order_of(value_access_, segment_.value, params_.head_dim);
  }

  // Goes to the rows from `first` on that lie together in memory; returns how many.
  std::int64_t begin_tile(std::int64_t first, std::int64_t last) {
    const auto together = [first](const KvRows& rows) {
      const bool grouped = is_quantised(rows.element) && rows.scales == KvScales::kPerChannel;
      const std::int64_t in_block = first % rows.block_rows;
      return grouped ? kQuantisedRows - in_block % kQuantisedRows : rows.block_rows - in_block;
    };
    first_ = first;
    count_ = std::min({kTileRows, last - first, together(segment_.key), together(segment_.value)});
    keys_ahead_ = ahead(segment_.key, last);
    values_ahead_ = ahead(segment_.value, last);
    key_scales_.set(segment_.key, first, count_);
    value_scales_.set(segment_.value, first, count_);
    if (segment_.raw_key) {
      angles_.set(segment_, first, count_);
    }
    return count_;
  }

  void score(const Quad& quad, std::int64_t kv_head, float* scores) {
    const auto body = [&](const auto& keys) {
      score_tile(keys, quad, width_, count_, scores, keys_ahead_);
    };
    const std::uint8_t* codes = place(segment_.key, kv_head);
    const std::int64_t stride = row_stride(segment_.key);
    if (key_access_ == Access::kUnpacked) {
      unpack_keys(kv_head);
      return body(unpacked());
    }
    with_element(segment_.key.element, [&](auto row) {
      using Row = decltype(row);
      if (key_access_ == Access::kTurned) {
        const float* scale = is_quantised(segment_.key.element)
                                 ? key_scales_.row(0) + kv_head * params_.head_dim
                                 : nullptr;
        body(TurnedRows<Row>{codes, stride, params_.head_dim / 2, angles_.cos(), angles_.sin(),
                             scale, scale + (scale == nullptr ? 0 : row_width())});
      } else if constexpr (Row::kBits > 8) {
        body(PlainRows<Row>{codes, stride});
      }
    });
  }

  void accumulate(const Quad& quad, std::int64_t kv_head, const float* weights) {
    const auto body = [&](const auto& values) {
      accumulate_tile(values, quad, width_, count_, weights, values_ahead_);
    };
    const std::uint8_t* codes = place(segment_.value, kv_head);
    const std::int64_t stride = row_stride(segment_.value);
    if (value_access_ == Access::kUnpacked) {
      unpack(segment_.value, value_scales_, kv_head);
      return body(unpacked());
    }
    with_element(segment_.value.element, [&](auto row) {
      using Row = decltype(row);
      if constexpr (Row::kBits > 8) {
        body(PlainRows<Row>{codes, stride});
      } else {
        body(ScaledRows<Row>{codes, stride,
                             value_scales_.row(0) + kv_head * params_.head_dim / 32 * 2,
                             value_scales_.stride()});
      }
    });
  }

 private:
  std::int64_t row_width() const { return params_.num_kv_heads * params_.head_dim; }
  bool normalises() const { return segment_.raw_key && params_.raw_keys.norm != nullptr; }
  PlainRows<Float32Row> unpacked() const {
    return {reinterpret_cast<const std::uint8_t*>(numbers_.data()),
            width_ * std::int64_t{sizeof(float)}};
  }

  // body(row type) of the element's rows.
  template <class Body>
  static void with_element(KvElement element, const Body& body) {
    switch (element) {
      case KvElement::kFloat32:
        return body(Float32Row());
      case KvElement::kBFloat16:
        return body(BFloat16Row());
      case KvElement::kFloat16:
        return body(Float16Row());
      case KvElement::kInt8:
        return body(Int8Row());
      case KvElement::kInt4:
        return body(Int4Row());
    }
  }

  static std::int64_t bytes_of(const KvRows& rows, std::int64_t numbers) {
    return rows.element == KvElement::kInt4
               ? numbers / 2
               : numbers * kv_rows_bytes(1, 1, 1, rows.element, KvScales::kPerChannel);
  }
  // The head's numbers of the tile's first row.
  const std::uint8_t* place(const KvRows& rows, std::int64_t kv_head) const {
    return kv_row_place(rows, row_width(), params_.head_dim, first_).codes +
           bytes_of(rows, kv_head * params_.head_dim);
  }
  std::int64_t row_stride(const KvRows& rows) const {
    return is_quantised(rows.element) && rows.scales == KvScales::kPerChannel
               ? bytes_of(rows, row_width())
               : kv_rows_bytes(1, row_width(), params_.head_dim, rows.element, rows.scales);
  }

  // The rows behind the tile.
  ReadAhead ahead(const KvRows& rows, std::int64_t last) const {
    const std::int64_t next = first_ + count_, count = std::min(count_, last - next);
    if (count <= 0) {
      return {};
    }
    return {kv_row_place(rows, row_width(), params_.head_dim, next).codes,
            kv_rows_bytes(count, row_width(), params_.head_dim, rows.element, rows.scales)};
  }

  void unpack(const KvRows& rows, const TileScales& scales, std::int64_t kv_head) {
    const RowsPiece piece{&rows, row_width(), params_.head_dim, kv_head * params_.head_dim,
                          params_.head_dim};
    for (std::int64_t row = 0; row < count_; ++row) {
      unpack_row(piece, scales, first_ + row, row, numbers_.data() + row * width_);
    }
  }

  void unpack_keys(std::int64_t kv_head) {
    unpack(segment_.key, key_scales_, kv_head);
    for (std::int64_t row = 0; segment_.raw_key && row < count_; ++row) {
      float* key = numbers_.data() + row * width_;
      if (normalises()) {
        normalise_key(norm_.data(), params_.raw_keys.norm_epsilon, params_.head_dim, width_, key);
      }
      rotate_key(params_.raw_keys.rope, angles_.cos()[row], angles_.sin()[row], key);
    }
  }

  const DecodeAttentionParams& params_;
  const KvSegment& segment_;
  std::int64_t width_;  // head_dim and zeros up to a whole number of vector pairs
  Access key_access_, value_access_;
  TileAngles angles_;
  TileScales key_scales_, value_scales_;
  std::vector<float> norm_;     // [width]
  std::vector<float> numbers_;  // [kTileRows, width], zeros from head_dim on
  std::int64_t first_ = 0, count_ = 0;
  ReadAhead keys_ahead_, values_ahead_;
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Reads keys and values tile by tile, head by head: in place where vectors fit, otherwise through rows of
// float32 numbers.
#if defined(KVC_RUNTIME_KERNELS_SEGMENT_READER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_SEGMENT_READER_INL_H_
#undef KVC_RUNTIME_KERNELS_SEGMENT_READER_INL_H_
#else
#define KVC_RUNTIME_KERNELS_SEGMENT_READER_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "runtime/kernels/int16_dot-inl.h"
#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/raw_keys-inl.h"
#include "runtime/kernels/row_sources-inl.h"
#include "runtime/kernels/unpack_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// `channels` and zeros up to a whole number of vector pairs.
inline std::int64_t padded_width(std::int64_t channels) {
  const std::int64_t pair = 2 * wide_lanes();
  return (channels + pair - 1) / pair * pair;
}

// Rows that lie together: in one block.
inline std::int64_t rows_in_block(const KvRows& rows, std::int64_t first) {
  return rows.block_rows - first % rows.block_rows;
}
inline bool has_row_groups(const KvRows& rows) {
  return is_quantised(rows.element) && rows.scales == KvScales::kPerChannel;
}

// body(row type) of the element's rows.
template <class Body>
void with_element(KvElement element, const Body& body) {
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

// A tile of one store's rows.
class TileRows {
 public:
  TileRows(const KvRows& rows, std::int64_t width, std::int64_t head_dim)
      : rows_(rows), width_(width), head_dim_(head_dim), scales_(width, head_dim) {}

  const KvRows& rows() const { return rows_; }
  std::int64_t width() const { return width_; }
  std::int64_t head_dim() const { return head_dim_; }
  std::int64_t first() const { return first_; }
  const TileScales& scales() const { return scales_; }
  ReadAhead& ahead() { return ahead_; }

  void begin(std::int64_t first, std::int64_t count, std::int64_t last) {
    first_ = first;
    scales_.set(rows_, first, count);
    const std::int64_t next = first + count, more = std::min(count, last - next);
    ahead_ = more <= 0
                 ? ReadAhead()
                 : ReadAhead(kv_row_place(rows_, width_, head_dim_, next).codes,
                             kv_rows_bytes(more, width_, head_dim_, rows_.element, rows_.scales));
  }
  // Numbers from `channel` on of the tile's row `line`.
  const std::uint8_t* at(std::int64_t line, std::int64_t channel) const {
    return kv_row_place(rows_, width_, head_dim_, first_ + line).codes + bytes_of(channel);
  }
  std::int64_t stride() const {
    return has_row_groups(rows_) ? bytes_of(width_)
                                 : kv_rows_bytes(1, width_, head_dim_, rows_.element, rows_.scales);
  }
  void unpack(std::int64_t line, std::int64_t count, std::int64_t channel, std::int64_t channels,
              std::int64_t to_stride, float* to) const {
    const RowsPiece piece{&rows_, width_, head_dim_, channel, channels};
    for (std::int64_t row = line; row < line + count; ++row, to += to_stride) {
      unpack_row(piece, scales_, first_ + row, row, to);
    }
  }

 private:
  std::int64_t bytes_of(std::int64_t channels) const {
    switch (rows_.element) {
      case KvElement::kFloat32:
        return 4 * channels;
      case KvElement::kInt8:
        return channels;
      case KvElement::kInt4:
        return channels / 2;
      default:
        return 2 * channels;
    }
  }

  const KvRows& rows_;
  std::int64_t width_, head_dim_, first_ = 0;
  TileScales scales_;
  ReadAhead ahead_;
};

class KeyReader {
 public:
  // factors [num_kv_heads, head_dim] multiply the keys; null: ones.
  KeyReader(const DecodeAttentionParams& params, const KvSegment& segment,
            const float* factors = nullptr)
      : params_(params),
        segment_(segment),
        tile_(segment.key, params.num_kv_heads * params.head_dim, params.head_dim),
        width_(padded_width(params.head_dim)),
        plain_(!segment.raw_key && !is_quantised(segment.key.element) && width_ == params.head_dim),
        turned_(turns_in_registers()),
        narrow_(KVC_HAS_INT16_DOT && turned_ && is_quantised(segment.key.element) &&
                params.head_dim % 64 == 0),
        queries_(params, width_, order(), factors),
        angles_(segment.raw_key ? params.raw_keys.rope : RopeAngles{}, kTileRows),
        norm_(static_cast<std::size_t>(width_)),
        numbers_(static_cast<std::size_t>(kTileRows * width_)) {
    if (params.raw_keys.norm != nullptr) {
      std::copy_n(params.raw_keys.norm, params.head_dim, norm_.begin());
    }
#if KVC_HAS_INT16_DOT
    if (narrow_) {
      narrow_queries_ = Int16Queries(queries_[0], QuadHeads(params).count, params.head_dim);
      narrow_angles_.resize(static_cast<std::size_t>(kTileRows * params.head_dim));
      narrow_scales_.resize(static_cast<std::size_t>(2 * params.head_dim));
    }
#endif
  }

  std::int64_t rows_together(std::int64_t first) const {
    return rows_in_block(segment_.key, first);
  }
  void begin_tile(std::int64_t first, std::int64_t count, std::int64_t last) {
    count_ = count;
    tile_.begin(first, count, last);
    if (segment_.raw_key) {
      angles_.set(segment_, first, count);
    }
#if KVC_HAS_INT16_DOT
    if (narrow_) {
      narrow_angles(angles_.row(0), count * params_.head_dim, params_.raw_keys.rope.cos[0],
                    narrow_angles_.data());
    }
#endif
  }

  // scores: [count, kQuad].
  void score(std::int64_t quad, std::int64_t kv_head, float* scores) {
    for (std::int64_t line = 0; line < count_;) {
      const std::int64_t in_group = (tile_.first() + line) % kQuantisedRows;
      const std::int64_t count = has_row_groups(segment_.key)
                                     ? std::min(count_ - line, kQuantisedRows - in_group)
                                     : count_;
      score_lines(quad, kv_head, line, count, scores + line * kQuad);
      line += count;
    }
  }

 private:
  ChannelOrder order() const {
    return turned_ && !narrow_ ? order_halves(params_.head_dim)
           : plain_ && segment_.key.element == KvElement::kBFloat16
               ? order_even_odd(params_.head_dim)
               : order_in_place(params_.head_dim);
  }

#if KVC_HAS_INT16_DOT
  template <class Row>
  void score_narrow(const std::uint8_t* codes, std::int64_t quad, std::int64_t channel,
                    std::int64_t line, std::int64_t count, float* scores) {
    const std::int64_t head_dim = params_.head_dim;
    const Int16Scales scales = narrow_scales<Row>(
        scale_of(line, channel), minimum_of(line, channel), head_dim, narrow_scales_.data());
    int16_score_tile<Row>(codes, tile_.stride(), head_dim, narrow_angles_.data() + line * head_dim,
                          params_.raw_keys.rope.cos[0], scales, narrow_queries_[quad],
                          narrow_queries_.units(quad), count, scores, tile_.ahead());
  }
#endif

  bool turns_in_registers() const {
    const RawKeys& raw = params_.raw_keys;
    const KvRows& rows = segment_.key;
    return segment_.raw_key && raw.norm == nullptr && !raw.rope.interleaved &&
           2 * raw.rope.num_pairs == params_.head_dim && width_ == params_.head_dim &&
           (is_quantised(rows.element) ? has_row_groups(rows) && raw.bias == nullptr : true) &&
           (rows.element != KvElement::kInt4 || params_.head_dim % 64 == 0);
  }

  // Lines of one group of rows where channels have scales.
  void score_lines(std::int64_t quad, std::int64_t kv_head, std::int64_t line, std::int64_t count,
                   float* scores) {
    const auto body = [&](const auto& keys) {
      score_tile(keys, queries_[quad], width_, count, scores, tile_.ahead());
    };
    const std::int64_t channel = kv_head * params_.head_dim;
    if (!plain_ && !turned_) {
      unpack(line, count, channel);
      return body(PlainRows<Float32Row>{reinterpret_cast<const std::uint8_t*>(numbers_.data()),
                                        width_ * std::int64_t{sizeof(float)}});
    }
    const std::uint8_t* numbers = tile_.at(line, channel);
#if KVC_HAS_INT16_DOT
    if (narrow_) {
      return segment_.key.element == KvElement::kInt8
                 ? score_narrow<Int8Row>(numbers, quad, channel, line, count, scores)
                 : score_narrow<Int4Row>(numbers, quad, channel, line, count, scores);
    }
#endif
    with_element(segment_.key.element, [&](auto row) {
      using Row = decltype(row);
      if (turned_) {
        body(TurnedRows<Row>{numbers, tile_.stride(), params_.head_dim / 2, angles_.row(line),
                             scale_of(line, channel), minimum_of(line, channel)});
      } else if constexpr (Row::kBits > 8) {
        body(PlainRows<Row>{numbers, tile_.stride()});
      }
    });
  }

  const float* scale_of(std::int64_t line, std::int64_t channel) const {
    return is_quantised(segment_.key.element) ? tile_.scales().row(line) + channel : nullptr;
  }
  const float* minimum_of(std::int64_t line, std::int64_t channel) const {
    if (is_quantised(segment_.key.element)) {
      return tile_.scales().row(line) + tile_.width() + channel;
    }
    return params_.raw_keys.bias == nullptr ? nullptr : params_.raw_keys.bias + channel;
  }

  void unpack(std::int64_t line, std::int64_t count, std::int64_t channel) {
    const RawKeys& raw = params_.raw_keys;
    tile_.unpack(line, count, channel, params_.head_dim, width_, numbers_.data());
    for (std::int64_t row = 0; segment_.raw_key && row < count; ++row) {
      float* key = numbers_.data() + row * width_;
      for (std::int64_t i = 0; raw.bias != nullptr && i < params_.head_dim; ++i) {
        key[i] += raw.bias[channel + i];
      }
      if (raw.norm != nullptr) {
        normalise_key(norm_.data(), raw.norm_epsilon, params_.head_dim, width_, key);
      }
      rotate_key(raw.rope, angles_.row(line + row), key);
    }
  }

  const DecodeAttentionParams& params_;
  const KvSegment& segment_;
  TileRows tile_;
  std::int64_t width_;
  bool plain_, turned_;
  bool narrow_;  // codes stay integers
  QuadQueries queries_;
  TileAngles angles_;
  std::vector<float> norm_;     // [width]
  std::vector<float> numbers_;  // [kTileRows, width], zeros from head_dim on
  std::int64_t count_ = 0;
#if KVC_HAS_INT16_DOT
  Int16Queries narrow_queries_;
  std::vector<std::int16_t> narrow_angles_;  // [kTileRows, 2, head_dim / 2]
  std::vector<std::int16_t> narrow_scales_;  // [2, head_dim]
#endif
};

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
        return int16_accumulate_tile<Row>(
            tile_.at(0, channel), tile_.stride(), tile_.scales().row(0) + channel / 32 * 2,
            tile_.scales().stride(), width_, count_, weights, weights_, output, tile_.ahead());
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
  Int16Weights weights_;
#endif
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

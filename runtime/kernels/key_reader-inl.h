// Scores of keys tile by tile, head by head: in place if vectors fit, otherwise through rows of float32
// numbers.
#if defined(KVC_RUNTIME_KERNELS_KEY_READER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_KEY_READER_INL_H_
#undef KVC_RUNTIME_KERNELS_KEY_READER_INL_H_
#else
#define KVC_RUNTIME_KERNELS_KEY_READER_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/bfloat16_dot-inl.h"
#include "runtime/kernels/cpu_features.h"
#include "runtime/kernels/int16_keys-inl.h"
#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/raw_keys-inl.h"
#include "runtime/kernels/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

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
        narrow_(reads_codes(params, segment)),
        queries_(params, width_, order(), factors),
        angles_(segment.raw_key ? params.raw_keys.rope : RopeAngles{}, kTileRows),
        norm_(static_cast<std::size_t>(width_)),
        numbers_(static_cast<std::size_t>(plain_ || turned_ ? 0 : kTileRows * width_)) {
    if (params.raw_keys.norm != nullptr) {
      std::copy_n(params.raw_keys.norm, params.head_dim, norm_.begin());
    }
#if KVC_HAS_BFLOAT16_DOT
    if (plain_ && segment.key.element == KvElement::kBFloat16 && has_avx512_bf16()) {
      bfloat16_queries_.emplace(params, factors);
    }
#endif
#if KVC_HAS_INT16_DOT
    if (narrow_) {
      codes_.emplace(params, segment, queries_[0]);
    }
#endif
  }

  std::int64_t rows_together(std::int64_t first) const {
    return rows_in_block(segment_.key, first);
  }
  void begin_tile(std::int64_t first, std::int64_t count, std::int64_t last) {
    count_ = count;
    tile_.begin(first, count, last);
#if KVC_HAS_INT16_DOT
    if (narrow_) {
      return codes_->begin_tile(first, count);
    }
#endif
    if (segment_.raw_key) {
      angles_.set(segment_, first, count);
    }
  }

  // scores: [count, kQuad].
  void score(std::int64_t quad, std::int64_t kv_head, float* scores) {
#if KVC_HAS_INT16_DOT
    if (narrow_) {
      return codes_->score(quad, quad + 1, scores, 0, tile_.ahead());
    }
#endif
    for (std::int64_t line = 0; line < count_;) {
      const std::int64_t in_group = (tile_.in_group() + line) % kQuantisedRows;
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

  static bool reads_codes(const DecodeAttentionParams& params, const KvSegment& segment) {
#if KVC_HAS_INT16_DOT
    return Int16Keys::reads(params, segment);
#else
    (void)params, (void)segment;
    return false;
#endif
  }

  bool turns_in_registers() const {
    const RawKeys& raw = params_.raw_keys;
    const KvRows& rows = segment_.key;
    return segment_.raw_key && raw.norm == nullptr && !raw.rope.interleaved &&
           2 * raw.rope.num_pairs == params_.head_dim && width_ == params_.head_dim &&
           (is_quantised(rows.element) ? has_row_groups(rows) && raw.bias == nullptr : true) &&
           (element_bits(rows.element) >= 8 || params_.head_dim % 64 == 0);
  }

  // Rows of one group, if channels have scales.
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
#if KVC_HAS_BFLOAT16_DOT
    if (bfloat16_queries_ && bfloat16_queries_->are_exact()) {
      return bfloat16_score_tile(numbers, tile_.stride(), width_, (*bfloat16_queries_)[quad],
                                 params_.scale, count, scores, tile_.ahead());
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
  AlignedVector<float> norm_;     // [width]
  AlignedVector<float> numbers_;  // [kTileRows, width], zeros from head_dim on
  std::int64_t count_ = 0;
#if KVC_HAS_BFLOAT16_DOT
  std::optional<Bfloat16Queries> bfloat16_queries_;
#endif
#if KVC_HAS_INT16_DOT
  std::optional<Int16Keys> codes_;
#endif
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Attention over integer codes of keys (before RoPE) and values (AVX-512), tile by tile.
#if defined(KVC_RUNTIME_KERNELS_INT16_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_INT16_ATTEND_INL_H_
#undef KVC_RUNTIME_KERNELS_INT16_ATTEND_INL_H_
#else
#define KVC_RUNTIME_KERNELS_INT16_ATTEND_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/cpu_features.h"
#include "runtime/kernels/int16_keys-inl.h"
#include "runtime/kernels/int16_sums-inl.h"
#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_INT16_DOT

class Int16Attention {
 public:
  static bool reads(const DecodeAttentionParams& params, const KvSegment& segment) {
    return Int16Keys::reads(params, segment) && params.softcap == 0 && segment.bias == nullptr &&
           is_quantised(segment.value.element) && segment.value.scales == KvScales::kPerRow &&
           params.value_channels() % kRun == 0;
  }

  Int16Attention(const DecodeAttentionParams& params, const KvSegment& segment)
      : channels_(params.value_channels()),
        key_width_(params.num_kv_heads * params.head_dim),
        value_width_(params.num_kv_heads * channels_),
        head_dim_(params.head_dim),
        segment_(segment),
        heads_(params),
        queries_(params, params.head_dim, order_in_place(params.head_dim)),
        keys_(params, segment, queries_[0]),
        outputs_(params, channels_),
        softmaxes_(params),
        scores_(static_cast<std::size_t>(heads_.count * kScores)) {}

  void attend(std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
    for (std::int64_t row = first; row < last;) {
      const std::int64_t count = rows_together(row, last), next = row + count;
      keys_.begin_tile(row, count);
      ReadAhead ahead = ahead_of(next, rows_together(next, last));
      keys_.score(0, heads_.count, scores_.data(), kScores, ahead);
      for (std::int64_t quad = 0; quad < heads_.count; ++quad) {
        add_values(quad, row, count, partial.scores, scores_.data() + quad * kScores, ahead);
      }
      row = next;
    }
    softmaxes_.begin(partial, channels_);
    outputs_.add_to(partial.output, order_of_pairs(channels_));
  }

 private:
  // Rows of one block of keys and one of values.
  std::int64_t rows_together(std::int64_t first, std::int64_t last) const {
    return first >= last ? 0
                         : std::min({kTileRows, last - first, rows_in_block(segment_.key, first),
                                     rows_in_block(segment_.value, first)});
  }
  ReadAhead ahead_of(std::int64_t first, std::int64_t count) const {
    if (count == 0) {
      return {};
    }
    const auto rows = [&](const KvRows& all, std::int64_t width, std::int64_t head_dim) {
      return ReadAhead(kv_row_place(all, width, head_dim, first).codes,
                       kv_rows_bytes(count, width, head_dim, all.element, all.scales));
    };
    return {rows(segment_.key, key_width_, head_dim_),
            rows(segment_.value, value_width_, channels_)};
  }

  void add_values(std::int64_t quad, std::int64_t row, std::int64_t count, const QuadScores& kept,
                  float* scores, ReadAhead& ahead) {
    if (kept.numbers != nullptr) {
      std::copy_n(scores, count * kQuad, kept.numbers + quad * kept.stride + row * kQuad);
    }
    const Rescale rescale = exponentiate(softmaxes_[quad], count, false, scores);
    apply(rescale, channels_, outputs_[quad]);
    const KvRowPlace place = kv_row_place(segment_.value, value_width_, channels_, row);
    const std::int64_t channel = heads_.kv_head(quad) * channels_;
    const std::int64_t stride =
        kv_rows_bytes(1, value_width_, channels_, segment_.value.element, KvScales::kPerRow);
    with_element(segment_.value.element, [&](auto element) {
      using Row = decltype(element);
      if constexpr (Row::kBits <= 8) {
        with_dot(vnni_, [&](auto vnni) {
          int16_accumulate_tile<Row, vnni()>(
              place.codes + channel * Row::kBits / 8,
              place.scales + channel / kRun * std::int64_t{2 * sizeof(std::uint16_t)}, stride,
              channels_, count, scores, weights_, outputs_[quad], ahead);
        });
      }
    });
  }

  std::int64_t channels_, key_width_, value_width_, head_dim_;
  const KvSegment& segment_;
  QuadHeads heads_;
  QuadQueries queries_;
  Int16Keys keys_;
  QuadOutputs outputs_;
  QuadSoftmaxes softmaxes_;
  Int16Weights weights_;
  AlignedVector<float> scores_;  // [quads, kScores]
  bool vnni_ = has_avx512_vnni();
};

#endif  // KVC_HAS_INT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

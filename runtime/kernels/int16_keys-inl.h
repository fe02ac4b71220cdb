// Keys of integer codes before RoPE, tile by tile, head by head: scores of 16-bit products.
#if defined(KVC_RUNTIME_KERNELS_INT16_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_INT16_KEYS_INL_H_
#undef KVC_RUNTIME_KERNELS_INT16_KEYS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_INT16_KEYS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/cpu_features.h"
#include "runtime/kernels/int16_scores-inl.h"
#include "runtime/kernels/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_INT16_DOT

class Int16Keys {
 public:
  static bool reads(const DecodeAttentionParams& params, const KvSegment& segment) {
    const RawKeys& raw = params.raw_keys;
    return segment.raw_key && has_row_groups(segment.key) && raw.norm == nullptr &&
           raw.bias == nullptr && !raw.rope.interleaved &&
           2 * raw.rope.num_pairs == params.head_dim && params.head_dim % (2 * kRun) == 0;
  }

  // queries: [quads, kQuad, head_dim], scaled.
  Int16Keys(const DecodeAttentionParams& params, const KvSegment& segment, const float* queries)
      : head_dim_(params.head_dim),
        width_(params.num_kv_heads * params.head_dim),
        segment_(segment),
        queries_(queries, QuadHeads(params).count, params.head_dim),
        angles_(params.raw_keys.rope),
        heads_(params),
        scales_(static_cast<std::size_t>(2 * head_dim_)) {}

  // Rows of one block.
  void begin_tile(std::int64_t first, std::int64_t count) {
    first_ = first;
    count_ = count;
    angles_.set(segment_, first, count, queries_);
  }

  // Scores of the tile, [count, kQuad] with each of the quads from `first` to `last` - 1, `stride` numbers apart. All
  // heads of a group of rows come before the next group, so its angles stay in the first-level cache.
  void score(std::int64_t first, std::int64_t last, float* scores, std::int64_t stride,
             ReadAhead& ahead) {
    with_element(segment_.key.element, [&](auto row) {
      using Row = decltype(row);
      if constexpr (Row::kBits <= 8) {
        with_dot(vnni_, [&](auto vnni) {
          for (std::int64_t line = 0; line < count_;) {
            const std::int64_t in_block = (first_ + line) % segment_.key.block_rows;
            const std::int64_t count =
                std::min(count_ - line, kQuantisedRows - in_block % kQuantisedRows);
            score_group<Row, vnni()>(line, count, first, last, scores + line * kQuad, stride,
                                     ahead);
            line += count;
          }
        });
      }
    });
  }

 private:
  // For rows of one group.
  template <class Row, bool kVnni>
  void score_group(std::int64_t line, std::int64_t count, std::int64_t first, std::int64_t last,
                   float* scores, std::int64_t stride, ReadAhead& ahead) {
    const KvRowPlace place = kv_row_place(segment_.key, width_, head_dim_, first_ + line);
    const std::int64_t row_bytes = width_ * Row::kBits / 8;
    const auto* scale = reinterpret_cast<const std::uint16_t*>(place.scales);
    for (std::int64_t quad = first; quad < last; ++quad) {
      const std::int64_t channel = heads_.kv_head(quad) * head_dim_;
      const float unit =
          narrow_scales<Row>(scale + channel, scale + width_ + channel, head_dim_, scales_.data());
      const Vec units = hn::Mul(hn::LoadDup128(Wide(), queries_.units(quad)),
                                hn::Set(Wide(), unit * angles_.factor() * (32768.0f / 32767)));
      int16_score_tile<Row, kVnni>(place.codes + channel * Row::kBits / 8, row_bytes, head_dim_,
                                   angles_.row(line), scales_.data(), queries_[quad], units, count,
                                   scores + (quad - first) * stride, ahead);
    }
  }

  std::int64_t head_dim_, width_;
  const KvSegment& segment_;
  Int16Queries queries_;
  Int16Angles angles_;
  QuadHeads heads_;
  AlignedVector<std::int16_t> scales_;  // [2, head_dim] of a head in a group of rows
  std::int64_t first_ = 0, count_ = 0;
  bool vnni_ = has_avx512_vnni();
};

#endif  // KVC_HAS_INT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Attention over bfloat16 keys and values as they lie, tile by tile (AVX-512 BF16).
#if defined(KVC_RUNTIME_KERNELS_BFLOAT16_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_BFLOAT16_ATTEND_INL_H_
#undef KVC_RUNTIME_KERNELS_BFLOAT16_ATTEND_INL_H_
#else
#define KVC_RUNTIME_KERNELS_BFLOAT16_ATTEND_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/bfloat16_quads-inl.h"
#include "runtime/kernels/cpu_features.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_BFLOAT16_DOT

class Bfloat16Attention {
 public:
  static bool reads(const DecodeAttentionParams& params, const KvSegment& segment) {
    return has_avx512_bf16() && !segment.raw_key && segment.key.element == KvElement::kBFloat16 &&
           segment.value.element == KvElement::kBFloat16 && params.head_dim % kRun == 0 &&
           params.value_channels() % kRun == 0;
  }

  Bfloat16Attention(const DecodeAttentionParams& params, const KvSegment& segment)
      : params_(params),
        segment_(segment),
        heads_(params),
        queries_(params, nullptr),
        outputs_(params, params.value_channels()),
        softmaxes_(params) {}
  // Are queries bfloat16 numbers? Otherwise these are others.
  bool is_exact() const { return queries_.are_exact(); }

  void attend(std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
    const std::int64_t size = kQuad * params_.head_dim;
    packed_.resize(static_cast<std::size_t>(heads_.count * size));
    for_quads([&](auto quads, std::int64_t quad) {
      decltype(quads)::pack(queries_[quad], params_.head_dim, packed_.data() + quad * size);
    });
    TilePlaces keys[2], values[2];
    set_tile(first, last, keys[0], values[0]);
    for (int now = 0; first < last; now = 1 - now) {
      const std::int64_t next = first + keys[now].count;
      set_tile(next, last, keys[1 - now], values[1 - now]);
      for_quads([&](auto quads, std::int64_t quad) {
        const bool begins_head = quad % heads_.per_kv_head == 0;
        attend_tile<decltype(quads)>(
            quad, first, partial.scores,
            {keys[now], begins_head ? &keys[1 - now] : nullptr,
             heads_.kv_head(quad) * 2 * params_.head_dim, 2 * params_.head_dim},
            {values[now], begins_head ? &values[1 - now] : nullptr,
             heads_.kv_head(quad) * 2 * params_.value_channels(), 2 * params_.value_channels()});
      });
      first = next;
    }
    softmaxes_.begin(partial, params_.value_channels());
    outputs_.add_to(partial.output, order_of_pairs(params_.value_channels()));
  }

 private:
  // body(Bfloat16Quads, first quad) for all quads, two of a KV head together as far as it has them.
  template <class Body>
  void for_quads(const Body& body) const {
    for (std::int64_t quad = 0; quad < heads_.count;) {
      const bool is_last = (quad + 1) % heads_.per_kv_head == 0;
      is_last ? body(Bfloat16Quads<1>(), quad) : body(Bfloat16Quads<2>(), quad);
      quad += is_last ? 1 : 2;
    }
  }

  void set_tile(std::int64_t first, std::int64_t last, TilePlaces& keys, TilePlaces& values) const {
    const std::int64_t count = std::min(kTileRows, last - first);
    keys.set(segment_.key, 2 * params_.num_kv_heads * params_.head_dim, first, count);
    values.set(segment_.value, 2 * params_.num_kv_heads * params_.value_channels(), first, count);
  }

  template <class Quads>
  void attend_tile(std::int64_t quad, std::int64_t first, const QuadScores& kept,
                   const HeadPlaces& keys, const HeadPlaces& values) {
    const std::int64_t count = keys.tile.count;
    Quads::score(keys, packed_.data() + quad * kQuad * params_.head_dim, params_.scale, scores_);
    if (params_.softcap != 0) {
      cap_scores(params_.softcap, count * Quads::kLanes / kQuad, scores_);
    }
    add_bias<Quads>(first, count, heads_.kv_head(quad));
    if (kept.numbers != nullptr) {
      keep_scores<Quads>(count, kept.numbers + quad * kept.stride + first * kQuad, kept.stride);
    }
    const std::int64_t rows = (count + 3) / 4 * 4;
    std::fill(scores_ + count * Quads::kLanes, scores_ + rows * Quads::kLanes, -INFINITY);
    Quads::weigh(rows, scores_, &softmaxes_[quad], pairs_, rescale_);
    Quads::accumulate(values, rows, pairs_, rescale_, outputs_[quad]);
  }

  template <class Quads>
  void add_bias(std::int64_t first, std::int64_t count, std::int64_t kv_head) {
    for (std::int64_t row = 0; segment_.bias != nullptr && row < count; ++row) {
      const float bias = segment_.bias[(first + row) * params_.num_kv_heads + kv_head];
      for (std::int64_t lane = 0; lane < Quads::kLanes; ++lane) {
        scores_[row * Quads::kLanes + lane] += bias;
      }
    }
  }

  template <class Quads>
  void keep_scores(std::int64_t count, float* to, std::int64_t stride) const {
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t i = 0; i < Quads::kLanes; i += kQuad) {
        _mm_storeu_ps(to + i / kQuad * stride + row * kQuad,
                      _mm_loadu_ps(scores_ + row * Quads::kLanes + i));
      }
    }
  }

  const DecodeAttentionParams& params_;
  const KvSegment& segment_;
  QuadHeads heads_;
  Bfloat16Queries queries_;
  QuadOutputs outputs_;
  QuadSoftmaxes softmaxes_;
  AlignedVector<std::uint16_t> packed_;  // the queries, as Bfloat16Quads packs them
  alignas(64) float scores_[kTileRows * 2 * kQuad];
  alignas(64) std::int32_t pairs_[kTileRows * kQuad];
  float rescale_[2 * kQuad];
};

#endif  // KVC_HAS_BFLOAT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

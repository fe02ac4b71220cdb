#include "runtime/kernels/fused_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/fused_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>

#include "runtime/kernels/bfloat16_attend-inl.h"
#include "runtime/kernels/key_reader-inl.h"
#include "runtime/kernels/value_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend_fused(const DecodeAttentionParams& params, const FusedSegment& segment,
                  std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  fused_attention_partial_reference(params, segment, first, last, partial);
}

#else

// One of the two layers.
struct FusedSource {
  FusedSource(const DecodeAttentionParams& params, const KvSegment& segment, const float* factors)
      : keys(params, segment, factors),
        values(segment.value, params.num_kv_heads * params.head_dim, params.head_dim,
               params.head_dim),
        outputs(params, values.width()) {}

  std::int64_t rows_together(std::int64_t row) const {
    return std::min(keys.rows_together(row), values.rows_together(row));
  }
  void begin_tile(std::int64_t first, std::int64_t count, std::int64_t last) {
    keys.begin_tile(first, count, last);
    values.begin_tile(first, count, last);
  }
  void accumulate(const Rescale& rescale, std::int64_t quad, std::int64_t kv_head,
                  const float* weights) {
    apply(rescale, values.width(), outputs[quad]);
    values.accumulate(outputs[quad], kv_head, weights);
  }

  KeyReader keys;
  ValueReader values;
  QuadOutputs outputs;
};

inline void add_scores(std::int64_t count, const float* more, float* scores) {
  const hn::CappedTag<float, 4> d;
  for (std::int64_t i = 0; i < count * kQuad; i += kQuad) {
    hn::StoreU(hn::Add(hn::LoadU(d, scores + i), hn::LoadU(d, more + i)), d, scores + i);
  }
}

void attend_fused(const DecodeAttentionParams& params, const FusedSegment& segment,
                  std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
#if KVC_HAS_BFLOAT16_DOT
  if (Bfloat16Attention::reads(params, segment.first) &&
      Bfloat16Attention::reads(params, segment.second)) {
    Bfloat16Attention attention(params,
                                {{segment.first, segment.first_key, segment.first_value},
                                 {segment.second, segment.second_key, segment.second_value}});
    return attention.attend(first, last, partial);
  }
#endif
  const QuadHeads heads(params);
  FusedSource one(params, segment.first, segment.first_key);
  FusedSource two(params, segment.second, segment.second_key);
  const bool in_bfloat16 = one.values.takes_bfloat16() || two.values.takes_bfloat16();
  QuadSoftmaxes softmaxes(params);
  HWY_ALIGN float scores[kScores + hn::MaxLanes(Wide())];
  HWY_ALIGN float more[kScores + hn::MaxLanes(Wide())];
  for (std::int64_t row = first; row < last;) {
    const std::int64_t count =
        std::min({kTileRows, last - row, one.rows_together(row), two.rows_together(row)});
    one.begin_tile(row, count, last);
    two.begin_tile(row, count, last);
    for (std::int64_t quad = 0; quad < heads.count; ++quad) {
      one.keys.score(quad, heads.kv_head(quad), scores);
      two.keys.score(quad, heads.kv_head(quad), more);
      add_scores(count, more, scores);
      if (params.softcap != 0) {
        cap_scores(params.softcap, count, scores);
      }
      const Rescale rescale = exponentiate(softmaxes[quad], count, in_bfloat16, scores);
      one.accumulate(rescale, quad, heads.kv_head(quad), scores);
      two.accumulate(rescale, quad, heads.kv_head(quad), scores);
    }
    row += count;
  }
  softmaxes.begin(partial, params.head_dim);
  one.outputs.add_to(partial.output, one.values.order(), segment.first_value);
  two.outputs.add_to(partial.output, two.values.order(), segment.second_value);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(attend_fused);

void fused_attention_partial(const DecodeAttentionParams& params, const FusedSegment& segment,
                             std::int64_t first, std::int64_t last,
                             const AttentionPartial& partial) {
  HWY_DYNAMIC_DISPATCH(attend_fused)(params, segment, first, last, partial);
}

}  // namespace kvc
#endif  // HWY_ONCE

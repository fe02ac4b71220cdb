#include "runtime/kernels/decode_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/decode_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>

#include "runtime/kernels/bfloat16_attend-inl.h"
#include "runtime/kernels/int16_attend-inl.h"
#include "runtime/kernels/key_reader-inl.h"
#include "runtime/kernels/value_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
            std::int64_t last, const AttentionPartial& partial) {
  decode_attention_partial_reference(params, segment, first, last, partial);
}

#else

// scores [count, kQuad] of rows from `row` on
void add_bias(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t row,
              std::int64_t kv_head, std::int64_t count, float* scores) {
  for (std::int64_t i = 0; segment.bias != nullptr && i < count; ++i) {
    const float bias = segment.bias[(row + i) * params.num_kv_heads + kv_head];
    for (std::int64_t lane = 0; lane < kQuad; ++lane) {
      scores[i * kQuad + lane] += bias;
    }
  }
}

void keep_scores(const QuadScores& to, std::int64_t quad, std::int64_t row, std::int64_t count,
                 const float* scores) {
  if (to.numbers != nullptr) {
    std::copy_n(scores, count * kQuad, to.numbers + quad * to.stride + row * kQuad);
  }
}

void attend(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
            std::int64_t last, const AttentionPartial& partial) {
#if KVC_HAS_BFLOAT16_DOT
  if (Bfloat16Attention::reads(params, segment)) {
    return Bfloat16Attention(params, {{segment}}).attend(first, last, partial);
  }
#endif
#if KVC_HAS_INT16_DOT
  if (Int16Attention::reads(params, segment)) {
    return Int16Attention(params, segment).attend(first, last, partial);
  }
#endif
  const QuadHeads heads(params);
  KeyReader keys(params, segment);
  const std::int64_t channels = params.value_channels();
  ValueReader values(segment.value, params.num_kv_heads * channels, channels, channels);
  QuadOutputs outputs(params, values.width());
  QuadSoftmaxes softmaxes(params);
  HWY_ALIGN float scores[kScores + hn::MaxLanes(Wide())];
  for (std::int64_t row = first; row < last;) {
    const std::int64_t count =
        std::min({kTileRows, last - row, keys.rows_together(row), values.rows_together(row)});
    keys.begin_tile(row, count, last);
    values.begin_tile(row, count, last);
    for (std::int64_t quad = 0; quad < heads.count; ++quad) {
      keys.score(quad, heads.kv_head(quad), scores);
      if (params.softcap != 0) {
        cap_scores(params.softcap, count, scores);
      }
      add_bias(params, segment, row, heads.kv_head(quad), count, scores);
      keep_scores(partial.scores, quad, row, count, scores);
      const Rescale rescale = exponentiate(softmaxes[quad], count, values.takes_bfloat16(), scores);
      apply(rescale, values.width(), outputs[quad]);
      values.accumulate(outputs[quad], heads.kv_head(quad), scores);
    }
    row += count;
  }
  softmaxes.begin(partial, channels);
  outputs.add_to(partial.output, values.order());
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(attend);

void decode_attention_partial(const DecodeAttentionParams& params, const KvSegment& segment,
                              std::int64_t first, std::int64_t last,
                              const AttentionPartial& partial) {
  HWY_DYNAMIC_DISPATCH(attend)(params, segment, first, last, partial);
}

}  // namespace kvc
#endif  // HWY_ONCE

#include "runtime/kernels/decode_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/decode_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include "runtime/kernels/quad_attention-inl.h"
#include "runtime/kernels/segment_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
            std::int64_t last, const AttentionPartial& partial) {
  decode_attention_partial_reference(params, segment, first, last, partial);
}

#else

void attend(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
            std::int64_t last, const AttentionPartial& partial) {
  SegmentReader reader(params, segment);
  QueryQuads quads(params, reader.width(), reader.key_order());
  HWY_ALIGN float scores[kScores + hn::MaxLanes(Wide())];
  for (std::int64_t row = first; row < last;) {
    const std::int64_t count = reader.begin_tile(row, last);
    for (std::int64_t quad = 0; quad < quads.size(); ++quad) {
      reader.score(quads[quad], quads.kv_head(quad), scores);
      if (params.softcap != 0) {
        cap_scores(params.softcap, count, scores);
      }
      exponentiate(quads[quad], reader.width(), count, scores);
      reader.accumulate(quads[quad], quads.kv_head(quad), scores);
    }
    row += count;
  }
  quads.collect(params, reader.value_order(), partial);
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

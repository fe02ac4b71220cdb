#include "runtime/kernels/key_scores.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/key_scores.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>

#include "runtime/kernels/key_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void score_keys(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
                std::int64_t last, float* scores) {
  key_scores_reference(params, segment, first, last, scores);
}

#else

void score_keys(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
                std::int64_t last, float* scores) {
  const QuadHeads heads(params);
  KeyReader keys(params, segment);
  HWY_ALIGN float of_tile[kScores + hn::MaxLanes(Wide())];
  for (std::int64_t row = first; row < last;) {
    const std::int64_t count = std::min({kTileRows, last - row, keys.rows_together(row)});
    keys.begin_tile(row, count, last);
    for (std::int64_t quad = 0; quad < heads.count; ++quad) {
      keys.score(quad, heads.kv_head(quad), of_tile);
      if (params.softcap != 0) {
        cap_scores(params.softcap, count, of_tile);
      }
      keep_scores(heads, params.num_heads, quad, row, count, of_tile, scores);
    }
    row += count;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(score_keys);

void key_scores(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
                std::int64_t last, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_keys)(params, segment, first, last, scores);
}

}  // namespace kvc
#endif  // HWY_ONCE

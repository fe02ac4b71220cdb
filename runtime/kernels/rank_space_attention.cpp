#include "runtime/kernels/rank_space_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/rank_space_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "runtime/kernels/key_reader-inl.h"
#include "runtime/kernels/value_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend_latents(const DecodeAttentionParams& params, const RankSpaceSegment& segment,
                    std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  const auto size = static_cast<std::size_t>(params.num_heads);
  std::vector<float> max(size), sum(size), output(size * static_cast<std::size_t>(segment.rank));
  const AttentionPartial own{max.data(), sum.data(), output.data()};
  rank_space_attention_partial_reference(params, segment, first, last, own);
  add_partial(own, params.num_heads, segment.rank, partial);
}

#else

void attend_latents(const DecodeAttentionParams& params, const RankSpaceSegment& segment,
                    std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  const QuadHeads heads(params);
  KeyReader keys(params, segment.keys);
  ValueReader latents(segment.latents, segment.width, segment.width, segment.rank,
                      segment.first_channel);
  QuadOutputs outputs(params, latents.width());
  QuadSoftmaxes softmaxes(params);
  HWY_ALIGN float scores[kScores + hn::MaxLanes(Wide())];
  for (std::int64_t row = first; row < last;) {
    const std::int64_t latent = segment.first_latent + row;
    const std::int64_t count =
        std::min({kTileRows, last - row, keys.rows_together(row), latents.rows_together(latent)});
    keys.begin_tile(row, count, last);
    latents.begin_tile(latent, count, segment.first_latent + last);
    for (std::int64_t quad = 0; quad < heads.count; ++quad) {
      keys.score(quad, heads.kv_head(quad), scores);
      if (params.softcap != 0) {
        cap_scores(params.softcap, count, scores);
      }
      const Rescale rescale =
          exponentiate(softmaxes[quad], count, latents.takes_bfloat16(), scores);
      apply(rescale, latents.width(), outputs[quad]);
      latents.accumulate(outputs[quad], 0, scores);
    }
    row += count;
  }
  outputs.join(softmaxes, latents.order(), partial);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(attend_latents);

void add_rank_space_attention(const DecodeAttentionParams& params, const RankSpaceSegment& segment,
                              std::int64_t first, std::int64_t last,
                              const AttentionPartial& partial) {
  HWY_DYNAMIC_DISPATCH(attend_latents)(params, segment, first, last, partial);
}

}  // namespace kvc
#endif  // HWY_ONCE

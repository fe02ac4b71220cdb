// One token's attention over rows and over latents, and its scores alone.
#include "runtime/kernels/decode_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/decode_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "runtime/kernels/bfloat16_attend-inl.h"
#include "runtime/kernels/int16_attend-inl.h"
#include "runtime/kernels/key_reader-inl.h"
#include "runtime/kernels/rank_space_attention.h"
#include "runtime/kernels/value_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
            std::int64_t last, const AttentionPartial& partial) {
  decode_attention_partial_reference(params, segment, first, last, partial);
}

void attend_latents(const DecodeAttentionParams& params, const RankSpaceSegment& segment,
                    std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  const auto size = static_cast<std::size_t>(params.num_heads);
  std::vector<float> max(size), sum(size), output(size * static_cast<std::size_t>(segment.rank));
  const AttentionPartial own{max.data(), sum.data(), output.data()};
  rank_space_attention_partial_reference(params, segment, first, last, own);
  add_partial(own, params.num_heads, segment.rank, partial);
}

void score_keys(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
                std::int64_t last, float* scores) {
  key_scores_reference(params, segment, first, last, scores);
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

HWY_EXPORT(attend);
HWY_EXPORT(attend_latents);
HWY_EXPORT(score_keys);

void decode_attention_partial(const DecodeAttentionParams& params, const KvSegment& segment,
                              std::int64_t first, std::int64_t last,
                              const AttentionPartial& partial) {
  HWY_DYNAMIC_DISPATCH(attend)(params, segment, first, last, partial);
}

void add_rank_space_attention(const DecodeAttentionParams& params, const RankSpaceSegment& segment,
                              std::int64_t first, std::int64_t last,
                              const AttentionPartial& partial) {
  HWY_DYNAMIC_DISPATCH(attend_latents)(params, segment, first, last, partial);
}

void key_scores(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
                std::int64_t last, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_keys)(params, segment, first, last, scores);
}

}  // namespace kvc
#endif  // HWY_ONCE

#include "runtime/kernels/decode_attention.h"

#include <cmath>
#include <vector>

#include "runtime/kernels/rank_space_attention.h"
#include "runtime/kernels/reference_rows.h"

namespace kvc {

void decode_attention_partial_reference(const DecodeAttentionParams& params,
                                        const KvSegment& segment, std::int64_t first,
                                        std::int64_t last, const AttentionPartial& partial) {
  const auto key = [&](std::int64_t row, std::int64_t kv_head) {
    return reference_key(params, segment, row, kv_head);
  };
  const auto value = [&](std::int64_t row, std::int64_t kv_head) {
    const std::int64_t channels = params.value_channels();
    return reference_row(segment.value, params.num_kv_heads * channels, channels, row,
                         kv_head * channels, channels);
  };
  reference_attention(params, key, value, first, last, partial, segment.bias);
}

void decode_attention_reference(const DecodeAttentionParams& params, const KvSegment* segments,
                                std::int64_t count, float* output) {
  const std::int64_t size = params.num_heads * (params.head_dim + 2);
  std::vector<float> memory(static_cast<std::size_t>(count * size));
  std::vector<AttentionPartial> partials;
  for (std::int64_t i = 0; i < count; ++i) {
    float* at = memory.data() + i * size;
    partials.push_back({at, at + params.num_heads, at + 2 * params.num_heads});
    decode_attention_partial_reference(params, segments[i], 0, segments[i].key.num_rows,
                                       partials.back());
  }
  combine_partials(partials.data(), count, params.num_heads, params.head_dim, output);
}

void rank_space_attention_partial_reference(const DecodeAttentionParams& params,
                                            const RankSpaceSegment& segment, std::int64_t first,
                                            std::int64_t last, const AttentionPartial& partial) {
  const auto key = [&](std::int64_t row, std::int64_t kv_head) {
    return reference_key(params, segment.keys, row, kv_head);
  };
  const auto latent = [&](std::int64_t row, std::int64_t) {
    return reference_row(segment.latents, segment.width, segment.width, segment.first_latent + row,
                         segment.first_channel, segment.rank);
  };
  reference_attention(params, key, latent, first, last, partial);
}

void key_scores_reference(const DecodeAttentionParams& params, const KvSegment& segment,
                          std::int64_t first, std::int64_t last, float* scores) {
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  for (std::int64_t row = first; row < last; ++row) {
    for (std::int64_t head = 0; head < params.num_heads; ++head) {
      const ReferenceRow key = reference_key(params, segment, row, head / heads_per_kv);
      double score = 0;
      for (std::int64_t i = 0; i < params.head_dim; ++i) {
        score += static_cast<double>(params.query[head * params.head_dim + i]) *
                 key[static_cast<std::size_t>(i)];
      }
      score *= params.scale;
      if (params.softcap != 0) {
        score = params.softcap * std::tanh(score / params.softcap);
      }
      scores[row * params.num_heads + head] = static_cast<float>(score);
    }
  }
}

}  // namespace kvc

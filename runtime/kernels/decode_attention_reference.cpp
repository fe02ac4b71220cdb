#include <vector>

#include "runtime/kernels/decode_attention.h"
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

}  // namespace kvc

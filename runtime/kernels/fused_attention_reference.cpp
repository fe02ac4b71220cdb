#include "runtime/kernels/fused_attention.h"
#include "runtime/kernels/reference_rows.h"

namespace kvc {
namespace {

// a * x + b * y by channels of the KV head; null: ones.
ReferenceRow weighted_sum(const float* a, const ReferenceRow& x, const float* b,
                          const ReferenceRow& y, std::int64_t kv_head) {
  ReferenceRow sum(x.size());
  const auto factor = [&](const float* factors, std::size_t channel) {
    return factors == nullptr ? 1.0
                              : factors[static_cast<std::size_t>(kv_head) * x.size() + channel];
  };
  for (std::size_t channel = 0; channel < x.size(); ++channel) {
    sum[channel] = factor(a, channel) * x[channel] + factor(b, channel) * y[channel];
  }
  return sum;
}

}  // namespace

void fused_attention_partial_reference(const DecodeAttentionParams& params,
                                       const FusedSegment& segment, std::int64_t first,
                                       std::int64_t last, const AttentionPartial& partial) {
  const auto key = [&](std::int64_t row, std::int64_t kv_head) {
    return weighted_sum(segment.first_key, reference_key(params, segment.first, row, kv_head),
                        segment.second_key, reference_key(params, segment.second, row, kv_head),
                        kv_head);
  };
  const auto value = [&](std::int64_t row, std::int64_t kv_head) {
    const auto of = [&](const KvSegment& source) {
      return reference_row(source.value, params.num_kv_heads * params.head_dim, params.head_dim,
                           row, kv_head * params.head_dim, params.head_dim);
    };
    return weighted_sum(segment.first_value, of(segment.first), segment.second_value,
                        of(segment.second), kv_head);
  };
  reference_attention(params, key, value, first, last, partial);
}

}  // namespace kvc

#include <cmath>

#include "runtime/kernels/key_scores.h"
#include "runtime/kernels/reference_rows.h"

namespace kvc {

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

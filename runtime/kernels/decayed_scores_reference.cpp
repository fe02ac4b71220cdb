#include <cmath>

#include "runtime/kernels/decayed_scores.h"
#include "runtime/kernels/query_quads.h"

namespace kvc {

void update_decayed_scores_reference(const DecayedScoresParams& params) {
  const QuadHeads heads(params.num_heads, params.num_kv_heads);
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    float* block = params.to[row / params.block_rows];
    for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      double sum = 0;
      for (std::int64_t i = 0; i < heads.heads_per_kv; ++i) {
        const std::int64_t head = kv_head * heads.heads_per_kv + i;
        const std::int64_t place = heads.place(head, row, params.scores.stride);
        sum += std::exp(static_cast<double>(params.scores.numbers[place]) -
                        static_cast<double>(params.log_sum[head]));
      }
      float& to = block[row % params.block_rows * params.num_kv_heads + kv_head];
      to = static_cast<float>(static_cast<double>(params.decay) * static_cast<double>(to) + sum);
    }
  }
}

}  // namespace kvc

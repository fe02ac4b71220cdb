// Attention that cached tokens received, with decay (ZeroMerge, eq. 5). Does not use torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

struct DecayedScoresParams {
  QuadScores scores;               // of the rows, as attention left them
  const float* log_sum = nullptr;  // [num_heads] log of the sum of exp(score) over all tokens
  std::int64_t num_rows = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  float decay = 1;
  float* const* to = nullptr;  // blocks of block_rows rows [num_kv_heads]
  std::int64_t block_rows = 0;
};

// to = decay * to + the probabilities exp(score - log_sum), summed over the query heads of each KV head.
void update_decayed_scores_reference(const DecayedScoresParams& params);
// The same, vectorised.
void update_decayed_scores(const DecayedScoresParams& params);

}  // namespace kvc

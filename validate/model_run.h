// One model over a batch of token rows, in each of the two settings.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/engine.h"

namespace kvc {

using TokenRows = std::vector<std::vector<std::int64_t>>;

// Tokens of a row that are prefilled in the continuation setting; the others are scored.
inline std::int64_t prompt_length(const std::vector<std::int64_t>& row) {
  return static_cast<std::int64_t>(row.size()) / 2;
}

// One exact prefill over each row. Row i's logits predict its tokens 1, 2, ...: [length - 1,
// vocab_size].
std::vector<at::Tensor> teacher_forced_logits(Engine& engine, const TokenRows& rows);

struct ContinuationRun {
  // Logits that predict the tokens after the prompt. Per row [length - prompt_length, vocab_size]
  std::vector<at::Tensor> logits;
  std::int64_t kv_bytes = 0;  // allocated by the batch once all tokens are in the cache
};
// The prompt is prefilled and compressed, the rest read through the compressed cache.
ContinuationRun continue_rows(Engine& engine, const TokenRows& rows);

}  // namespace kvc

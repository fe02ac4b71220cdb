// One model over a batch of token rows, in each of the two settings.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/engine.h"

namespace kvc {

using TokenRows = std::vector<std::vector<std::int64_t>>;

// Tokens of the longest row; 0 of none.
inline std::int64_t longest_row(const TokenRows& rows) {
  std::int64_t longest = 0;
  for (const auto& row : rows) {
    longest = std::max(longest, static_cast<std::int64_t>(row.size()));
  }
  return longest;
}

// Where the continuation setting starts to score a row of `length` tokens (ValidateOptions::block_tokens).
inline std::int64_t first_scored(std::int64_t length, std::int64_t block_tokens) {
  return block_tokens > 0 ? std::min(block_tokens, length - 1) : length / 2;
}

// One exact prefill over each row. Row i's logits predict its tokens 1, 2, ...: [length - 1,
// vocab_size].
std::vector<at::Tensor> teacher_forced_logits(Engine& engine, const TokenRows& rows);

struct ContinuationRun {
  // Logits that predict the tokens from first_scored() on. Per row [length - first_scored, vocab_size]
  std::vector<at::Tensor> logits;
  std::int64_t kv_bytes = 0;  // allocated by the batch once all tokens are in the cache
};
// Prompts are prefilled and compressed, what follows is read through the compressed cache.
ContinuationRun continue_rows(Engine& engine, const TokenRows& rows, std::int64_t block_tokens);

struct ModelRun {
  std::vector<at::Tensor> teacher_forced;
  ContinuationRun continuation;
};
// Both settings. Each row is read once where prompts are read as their continuation is, and only its continuation twice where the
// cache can drop its last tokens (Engine::can_rewind).
ModelRun run_rows(Engine& engine, const TokenRows& rows, std::int64_t block_tokens);

}  // namespace kvc

// The next token of every sequence, chosen on the GPU: greedy, or drawn from what temperature, top-k, top-p and min-p
// leave, in the order and with the meaning of runtime/sampler.h. The end of a step: the sequences' places move on.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

constexpr std::int32_t kNoToken = -1;  // the logits are not finite

// Probabilities are whole multiples of 2^-40 of the most probable token's, and logits that differ by less than 2^-20
// rank alike: sums are integers, so that a seed gives the same tokens in every run.
struct SampleTokens {
  static constexpr int kMostCounters = 5;

  const float* logits = nullptr;  // [num_sequences, vocab_size]
  int num_sequences = 0;
  int vocab_size = 0;
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: all
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  std::uint32_t* seen =
      nullptr;  // [num_sequences, (vocab_size + 31) / 32] a bit per token of the text; null: no penalty
  const std::uint64_t* seeds = nullptr;  // [num_sequences]
  std::int32_t* ids = nullptr;           // [num_sequences] becomes the token
  std::int32_t* positions = nullptr;  // [num_sequences] += 1, up to tokens_stride - 1: its position
  std::int32_t* counters[kMostCounters] = {};  // [num_sequences] each: += 1 with it, or null
  std::int32_t* tokens =
      nullptr;  // [num_sequences, tokens_stride] by position; may be the host's pinned memory
  std::int64_t tokens_stride = 0;
  // [num_sequences, tokens_stride] by position: what the text has there, in the place of what would be chosen, or
  // kNoToken; null: nowhere.
  const std::int32_t* given = nullptr;
};

// The same in plain loops on the CPU, all pointers to CPU memory.
void sample_tokens_reference(const SampleTokens& params);

}  // namespace kvc

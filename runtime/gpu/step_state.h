// The memory of a decoding step besides weights and cache.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/config.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/sampler.h"

namespace kvc {

// Data that a step reads and writes besides weights and cache; all on the device except `tokens`.
struct StepState {
  at::Tensor ids;         // [num_sequences] int32: the token that the next step feeds
  at::Tensor positions;   // [num_sequences] int32: its position
  at::Tensor num_rows;    // [num_sequences] int32: its position + 1
  at::Tensor first_rows;  // [num windows, num_sequences] int32: the first token that a window shows
  at::Tensor seeds;       // [num_sequences] int64
  at::Tensor
      seen;  // [num_sequences, words] int32: bits of the text's tokens; undefined without penalty
  at::Tensor
      tokens;  // [num_sequences, capacity] int32, the CPU's: by position, kNoToken where logits are not finite
  // The same for the prompts' tokens that steps read, on the device, kNoToken elsewhere; undefined if there are none.
  at::Tensor given;
  at::Tensor logits;  // [num_sequences, vocab_size] float32
};

struct StepSequences {
  std::vector<std::vector<std::int64_t>> texts;  // prompts
  std::int64_t prefill_tokens = 0;               // of each, read before the first step; 0: all
  std::int64_t held = 0;  // first tokens of each that the cache has already: earlier turns
  std::vector<std::uint64_t> seeds;
  std::int64_t capacity = 0;  // tokens that the longest may have
  SamplingOptions sampling;

  // Tokens of a text that are read before the first step.
  std::int64_t prefilled(std::size_t sequence) const {
    const auto length = static_cast<std::int64_t>(texts[sequence].size());
    return prefill_tokens > 0 ? std::min(length, prefill_tokens) : length;
  }
};

// The state after prompts were read, before first tokens are sampled from their last logits.
StepState make_step_state(const ModelConfig& config, const StepSequences& sequences,
                          StepExecutor& executor);

// Data passed from launch to launch, [num_sequences, width] each.
struct StepMemory {
  at::Tensor hidden, added;          // float32, hidden_size
  at::Tensor projected;              // float32: queries, keys, values
  at::Tensor normed;                 // 16 bits, hidden_size
  at::Tensor query, attended;        // 16 bits, q_dim
  at::Tensor inner;                  // 16 bits, intermediate_size
  at::Tensor maxima, sums, outputs;  // float32: partial softmaxes
  DevicePartials partials;
};
StepMemory make_step_memory(const ModelConfig& config, at::ScalarType dtype,
                            std::int64_t num_sequences, std::int64_t capacity,
                            const StepExecutor& executor);

}  // namespace kvc

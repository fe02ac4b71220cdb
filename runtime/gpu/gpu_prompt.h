// Reads prompts on a GPU through LibTorch into the cache.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/attention/prompt_reader.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"

namespace kvc {

struct GpuPromptOptions {
  std::int64_t chunk = 0;       // tokens whose activations are in memory at a time; 0: all
  bool all_logits = false;      // of every token, else of the last one
  Stopped stopped{};            // asked before every chunk
  std::int64_t num_before = 0;  // tokens that the sequence has: a later turn's prompt
};

// A prompt's tokens as sequence 0 of batches of at most `chunk` tokens (0: one batch), ids on `device`,
// positions after `num_before` tokens on the CPU.
std::vector<TokenBatch> prompt_batches(const std::vector<std::int64_t>& ids, std::int64_t chunk,
                                       at::Device device, std::int64_t num_before = 0);

// Exact attention of one prompt, the next tokens of `sequence`, over all tokens. At its end latent groups and the codes
// of token policies are compressed. Model, cache and executor are on one device. Returns logits there, [1 or
// num_tokens, vocab_size] float32. Throws Interrupted.
at::Tensor read_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                           const std::vector<std::int64_t>& ids, const GpuPromptOptions& options,
                           StepExecutor& executor);

}  // namespace kvc

// Prompts read on a GPU through LibTorch; their keys and values lie in the cache afterwards.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/prompt_reader.h"

namespace kvc {

struct GpuPromptOptions {
  std::int64_t chunk = 0;       // tokens whose activations are in memory at a time; 0: all
  bool all_logits = false;      // of every token, else of the last one
  Stopped stopped{};            // asked before every chunk
  std::int64_t num_before = 0;  // tokens that the sequence has: a later turn's prompt
};

// A prompt's tokens as sequence 0 of batches of at most `chunk` (0: of one), ids on `device`, positions, behind
// `num_before` tokens, on the CPU.
std::vector<TokenBatch> prompt_batches(const std::vector<std::int64_t>& ids, std::int64_t chunk,
                                       at::Device device, std::int64_t num_before = 0);

// Exact attention of one prompt, which becomes the next tokens of `sequence`, over all it has; what latent groups hold is
// compressed at its end, and so is what token policies keep as codes. Model, cache and executor are on one device. Logits
// there, [1 or num_tokens, vocab_size] float32. Throws Interrupted.
at::Tensor read_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                           const std::vector<std::int64_t>& ids, const GpuPromptOptions& options,
                           StepExecutor& executor);

}  // namespace kvc

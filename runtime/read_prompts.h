// Reads the prompts of a generation.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "runtime/engine.h"
#include "runtime/generate.h"

namespace kvc {

// Reads each prompt into its new sequence; tokens after options.prefill_tokens continue the compressed
// cache. Returns logits of every prompt: all rows with options.all_logits, else the last.
std::vector<at::Tensor> read_prompts(const Engine& engine, const Engine::Ids& prompts,
                                     const GenerateOptions& options,
                                     std::vector<Sequence>& sequences);

}  // namespace kvc

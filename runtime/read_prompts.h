// The first half of a generation: its prompts.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "runtime/engine.h"
#include "runtime/generate.h"

namespace kvc {

// Reads each prompt into its new sequence, with what options.prefill_tokens leaves as a continuation of
// the compressed cache. Logits of every prompt: all rows with options.all_logits, else the last.
std::vector<at::Tensor> read_prompts(const Engine& engine, const Engine::Ids& prompts,
                                     const GenerateOptions& options,
                                     std::vector<Sequence>& sequences);

}  // namespace kvc

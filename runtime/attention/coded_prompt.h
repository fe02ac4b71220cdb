// Long texts that coded layers read through codes, layer by layer (reads_codes_by_layer).
#pragma once

#include <ATen/ATen.h>

#include "runtime/attention/layer_source.h"
#include "runtime/attention/prompt_attention.h"

namespace kvc {

// Stores one sequence's next tokens of a text, of one layer alone, and attends to them: a query reads the tiles before its
// exact ones through their codes, as if tokens were read one by one, and sinks exactly. The exact rows of at most coded_prompt_step() tokens
// are stored besides the window's. query [count, num_heads, head_dim] post-RoPE; [count, num_heads * head_dim].
at::Tensor read_coded_prompt(const SourceContext& context, int layer, const NewTokens& tokens,
                             const at::Tensor& query, CodedStore& store, PromptKeys& prompt);

}  // namespace kvc

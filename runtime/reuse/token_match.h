// Which token of another prompt stands for each token of a new one: the nearest by cosine of the
// embeddings after RoPE, so that the position counts (SemShareKV).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "runtime/reuse/reuse_options.h"

namespace kvc {

struct TokenMatch {
  at::Tensor index;   // [num_tokens] int64: the donor's token, m(i); of equals the first
  at::Tensor cosine;  // [num_tokens] float32
};

// Rows of an embedding [num_tokens, hidden_size] turned by their positions 0, 1, ...: pairs (2k, 2k+1) of the whole
// vector by 10000^(-2k/hidden_size) per position. Then of length 1; a row of zeros stays one. float32, on their device, as
// are matches of such.
at::Tensor turned_embeddings(const at::Tensor& embeddings);

// Exact: every pair is compared, tile by tile. Both as turned_embeddings makes them.
TokenMatch match_tokens(const at::Tensor& target, const at::Tensor& donor);

// From 0 to 1; `seed` gives the random planes of hamming30.
double prompt_similarity(PromptSimilarity kind, const TokenMatch& match, const at::Tensor& target,
                         const at::Tensor& donor, std::uint64_t seed);

}  // namespace kvc

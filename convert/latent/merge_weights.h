// Weights of the convex merge rules, h = sum_l w_l A x_l.
#pragma once

#include <cstdint>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "core/token_set.h"

namespace kvc {

// The scores of a group's layers as weights that sum to 1; equal when no score is positive.
// `layer_scores` [num_layers of the model].
std::vector<double> merge_weights(const LatentGroup& group,
                                  const std::vector<double>& layer_scores);

// Per layer max(0, perplexity with that layer's post-RoPE keys replaced by N(0, 1) - perplexity),
// over at most 10 sequences. The whole model is in memory. [num_layers]
std::vector<double> sensitivity_scores(const Checkpoint& checkpoint, const TokenSet& tokens,
                                       std::uint64_t seed);

}  // namespace kvc

// kvfisher: diagonal Fisher information of the key and value projections.
//
// Per sequence s the mean next-token NLL (one label shift) is differentiated with respect to k_proj and
// v_proj weights only; g_s is summed over the tokens of s, squared, and summed over sequences.
// fisher.h5 (sums float64, counts int64):
//   /                       provenance
//   /num_sequences          [1]
//   /num_tokens             [1]  scored tokens
//   /loss_sum               [1]  sum over sequences of the mean NLL
//   /channel_sum            [num_layers, 2, kv_dim]  sum over sequences and inputs of g^2; 0 = key, 1 = value
//   /rms_sum                [num_layers, 2]  sum over weights of sqrt(mean over sequences of g^2) (fisher-rms); not additive
#pragma once

#include <filesystem>
#include <vector>

#include "core/checkpoint.h"
#include "core/json.h"
#include "core/provenance.h"
#include "core/statistics_file.h"
#include "core/token_set.h"
#include "model/compute_place.h"

namespace kvc {

Provenance fisher_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                             const ComputePlace& place = {});
// Layer-streamed: the residual stream at every layer boundary goes to a temporary file beside `out`,
// weights are visited one layer at a time, forwards and then backwards, so memory does not grow with
// the number of layers. Every sequence runs alone, in `place`'s type whatever the weights' is; gradients of
// weights are float32 and sums over sequences float64 in either. Scores in bfloat16 lie within 5 % of those
// in float32.
void fisher(const Checkpoint& checkpoint, const TokenSet& tokens, const std::filesystem::path& out,
            bool force, const ComputePlace& place = {});
// Sums of several runs over the same checkpoint, equal to one run over all their sequences. The result
// has no /rms_sum, which cannot be had from the files' own.
void add_fishers(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out,
                 bool force);

// {"num_sequences", "num_tokens", "mean_nll", "score": [per layer, k_proj plus v_proj]}
Json fisher_summary(const std::filesystem::path& fisher);

}  // namespace kvc

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

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/checkpoint.h"
#include "core/provenance.h"
#include "core/statistics_file.h"
#include "core/token_set.h"

namespace kvc {

struct FisherOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path out;     // fisher.h5
  std::filesystem::path tokens;  // tokens.h5
  bool force = false;
};

Provenance fisher_provenance(const Checkpoint& checkpoint, const TokenSet& tokens);
// Layer-streamed: boundaries of the residual stream are kept (spilled to disk), weights are visited one
// layer at a time, forwards and then backwards.
void fisher(const FisherOptions& options);
void add_fishers(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out,
                 bool force);

}  // namespace kvc

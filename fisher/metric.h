// The gradient metric of cached keys and values (kvfisher --metric): a true Fisher information.
//
// In every sequence a cache holds the keys and values of the first half, and the loss is the summed
// NLL of labels that the model draws for the second half. g is its gradient with respect to one token's y,
// the stacked keys (before RoPE, after their norm) and values of adjacent layers; then half of
// sum e^T (g g^T) e is, to second order, what an error e of the cached y adds to the KL divergence of the
// second half. Sums are float64:
//   /                          provenance of kind "metric"
//   /num_tokens                [1]  tokens g was summed over: of the first half, behind the sinks
//   /num_scored                [1]  tokens of second halves
//   /loss_sum                  [1]  their NLL
//   /metric/<f>/second_moment  [n, n]  sum g g^T of the run of layers that begins with f
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/checkpoint.h"
#include "core/json.h"
#include "core/provenance.h"
#include "core/token_set.h"
#include "model/compute_place.h"
#include "model/joint_moment.h"

namespace kvc {

struct MetricOptions {
  JointOptions joint{.layers_per_group = 1};
  std::uint64_t seed =
      0;  // of the labels; every sequence's draw depends on it and the sequence alone
};

Provenance metric_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                             const MetricOptions& options, const ComputePlace& place = {});
// Layer-streamed, every sequence alone, as fisher() is. Error where a sequence's first half holds nothing
// behind the sinks.
void metric(const Checkpoint& checkpoint, const TokenSet& tokens, const MetricOptions& options,
            const std::filesystem::path& out, bool force, const ComputePlace& place = {});
// Sums of several runs, made with the same options over the same checkpoint.
void add_metrics(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out,
                 bool force);
// {"num_tokens", "num_scored", "mean_nll"}
Json metric_summary(const std::filesystem::path& file);

}  // namespace kvc

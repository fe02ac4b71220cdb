// kvcalibrate --covariance: what coded caches are fitted to. Sums, so that files add up, over all tokens but
// the first of every sequence, which caches keep as they are. covariance.h5 (float64, counts int64):
//   /                               provenance of kind "covariance"
//   /num_tokens                     [1]
//   /joint/<f>/sum, second_moment   [n], [n, n]  of y, the stacked keys (before RoPE, after their norm, with bias) and
//                                   values of the run of layers that begins with f; layer by layer key, then value
//   /attention/<l>/value_metric     [num_kv_heads, head_dim, head_dim], if attention or reach is asked for
//   /attention/<l>/key_metric       likewise, with attention (attention_metric.h)
//   /attention/<l>/query_metric     likewise, with reach
//   /attention/<l>/distance_weight  [num_heads, kNumDistances], with reach
#pragma once

#include <filesystem>
#include <vector>

#include "core/checkpoint.h"
#include "core/json.h"
#include "core/provenance.h"
#include "core/token_set.h"
#include "model/compute_place.h"
#include "model/joint_moment.h"

namespace kvc {

struct CovarianceOptions {
  JointOptions joint{.layers_per_group = 1};
  bool attention = false;  // also the attention metric
  bool reach = false;      // also how far attention looks, with the value's metric
};

Provenance covariance_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                                 const CovarianceOptions& options, const ComputePlace& place = {});
// Layer-streamed, every sequence alone, as calibrate() is. Error where no sequence has a token that counts.
void covariance(const Checkpoint& checkpoint, const TokenSet& tokens,
                const CovarianceOptions& options, const std::filesystem::path& out, bool force,
                const ComputePlace& place = {});
// Sums of several runs, made with the same options over the same checkpoint.
void add_covariances(const std::vector<std::filesystem::path>& files,
                     const std::filesystem::path& out, bool force);
// {"num_tokens", "num_runs"}
Json covariance_summary(const std::filesystem::path& file);

}  // namespace kvc

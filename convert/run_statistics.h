// Statistics of the keys and values of adjacent layers, from the files of sums.
#pragma once

#include <ATen/ATen.h>

#include "convert/methods/methods.h"
#include "model/config.h"
#include "model/eigen/principal_basis.h"

namespace kvc {

// Statistics of one run of layers. Stacked y has n = 2 * num_layers * kv_dim channels: layer by layer key
// (before RoPE, after its norm), then value.
struct RunStatistics {
  std::int64_t num_tokens = 0;  // of the covariance
  at::Tensor mean;              // [n] float64
  at::Tensor covariance;        // [n, n] float64, about the mean
  at::Tensor metric;            // [n, n] float64, not damped; undefined for CacheMetric::kNone
};
// From covariance.h5 and, where the choice needs it, metric.h5. Error where they are of another checkpoint or
// of other runs.
RunStatistics read_run_statistics(const ConversionJob& job, const LayerRun& run,
                                  CacheMetric choice);

}  // namespace kvc

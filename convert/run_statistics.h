// What calibration measured of the keys and values of adjacent layers together, from the files of sums.
#pragma once

#include <ATen/ATen.h>

#include "convert/cache_metric.h"
#include "convert/conversion_job.h"
#include "model/config.h"

namespace kvc {

// Of one run of layers, whose stacked y has n = 2 * num_layers * kv_dim channels: layer by layer key (before
// RoPE, after its norm), then value.
struct RunStatistics {
  std::int64_t num_tokens = 0;  // of the covariance
  at::Tensor mean;              // [n] float64
  at::Tensor covariance;        // [n, n] float64, about the mean
  at::Tensor metric;            // [n, n] float64, not damped; undefined for CacheMetric::kNone
};
// From job.covariance and, where the choice needs it, job.metric. Error where they are of another checkpoint or
// of other runs.
RunStatistics read_run_statistics(const ConversionJob& job, const LayerRun& run,
                                  CacheMetric choice);

// A hundredth of its mean is added to the diagonal of each `part_width` of channels: one layer's keys, or its
// values. A part that the metric does not see at all gets that of the whole, so that it stays defined.
at::Tensor damped_cache_metric(at::Tensor metric, std::int64_t part_width);

}  // namespace kvc

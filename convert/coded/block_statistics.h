// Statistics of a coded block.
#pragma once

#include <ATen/ATen.h>

#include "convert/coded/block_layout.h"
#include "convert/run_statistics.h"

namespace kvc {

struct BlockStatistics {
  at::Tensor mean;        // [n] float64
  at::Tensor covariance;  // [n, n] float64
  // [n, n] float64, damped; the identity without a metric. A block of one layer has no terms between keys
  // and values.
  at::Tensor metric;
};
// `statistics` are those of `run`, which contains the block.
BlockStatistics block_statistics(const RunStatistics& statistics, const LayerRun& run,
                                 const CodedBlock& block, const ModelConfig& config);
// Error if there are fewer than four tokens per channel of the block.
void check_calibration_tokens(const RunStatistics& statistics, const CodedBlock& block,
                              const ModelConfig& config);

}  // namespace kvc

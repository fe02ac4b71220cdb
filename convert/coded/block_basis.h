// The coordinates of a coded block: E and F for each form of transform (CodedBlock).
#pragma once

#include <ATen/ATen.h>

#include "convert/run_statistics.h"
#include "core/kv_sources.h"
#include "model/config.h"

namespace kvc {

// Coefficients by falling variance.
struct BlockBasis {
  at::Tensor encoder, decoder;  // [n, n] float64, E F = I
  at::Tensor mean;       // [n] float64: statistics.mean, zero where it stays within the codes
  at::Tensor variances;  // [n] float64, of the coefficients
};
// statistics: of the block's channels, the metric positive definite.
//   one basis        principal directions
//   several bases    those of each
//   rotated          single channels; those of a rotary pair have one scale, from the mean of their metric
BlockBasis block_basis(const RunStatistics& statistics, const CodedBlock& block,
                       const ModelConfig& config, at::Device device);

// Samples of y - mean [num_tokens, n] of rotated keys, each pair turned by an angle of its own: a position's angle may
// be any, also beyond the calibration text's.
at::Tensor turned_samples(const at::Tensor& samples, const CodedBlock& block,
                          const ModelConfig& config);

}  // namespace kvc

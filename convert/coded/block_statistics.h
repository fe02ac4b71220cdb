// What calibration measured of a coded block, from the files of sums.
#pragma once

#include <ATen/ATen.h>

#include "convert/coded/block_layout.h"
#include "convert/conversion_job.h"

namespace kvc {

// Of one run of layers. float64
class RunStatistics {
 public:
  // Error where the calibration has fewer than four tokens per channel of the widest block in `blocks`.
  RunStatistics(const ConversionJob& job, const LayerRun& run,
                const std::vector<CodedBlock>& blocks);

  at::Tensor mean(const CodedBlock& block) const;        // [n]
  at::Tensor covariance(const CodedBlock& block) const;  // [n, n]
  // Of the settings' choice, damped. A block of one layer has no terms between keys and values. [n, n]
  at::Tensor metric(const CodedBlock& block) const;

 private:
  void load_attention_metric();
  void scale_to_gradient(const at::Tensor& gradient);
  at::Tensor channels(const CodedBlock& block) const;

  const ConversionJob& job_;
  LayerRun run_;
  at::Tensor mean_, covariance_, metric_;  // of the whole run; metric undefined where there is none
};

}  // namespace kvc

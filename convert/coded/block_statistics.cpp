#include "convert/coded/block_statistics.h"

#include <utility>

#include "core/error.h"

namespace kvc {

BlockStatistics block_statistics(const RunStatistics& statistics, const LayerRun& run,
                                 const CodedBlock& block, const ModelConfig& config) {
  const std::int64_t n = num_channels(block, config), part_width = n / (2 * block.num_layers);
  const at::Tensor index = at::tensor(channels_in_run(block, run, config), at::kLong);
  const auto square = [&](const at::Tensor& matrix) {
    return matrix.index_select(0, index).index_select(1, index);
  };
  BlockStatistics own{statistics.mean.index_select(0, index), square(statistics.covariance), {}};
  if (!statistics.metric.defined()) {
    own.metric = at::eye(n, at::kDouble);
    return own;
  }
  at::Tensor metric = square(statistics.metric);
  if (block.num_layers == 1) {
    metric.narrow(0, 0, part_width).narrow(1, part_width, part_width).zero_();
    metric.narrow(0, part_width, part_width).narrow(1, 0, part_width).zero_();
  }
  own.metric = damped_cache_metric(std::move(metric), part_width);
  return own;
}

void check_calibration_tokens(const RunStatistics& statistics, const CodedBlock& block,
                              const ModelConfig& config) {
  const std::int64_t least = least_calibration_tokens(block, config);
  KVC_CHECK(statistics.num_tokens >= least,
            "{}: the covariance of its {} channels was measured on {} tokens, expected at least "
            "{}; calibrate with more text, or use a smaller --scope or --group",
            name_of(block), num_channels(block, config), statistics.num_tokens, least);
}

}  // namespace kvc

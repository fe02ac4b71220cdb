#include "convert/coded/block_statistics.h"

#include <algorithm>

#include "convert/coded/basis.h"
#include "core/error.h"
#include "core/statistics_file.h"

namespace kvc {
namespace {

at::Tensor matrix_of(std::vector<double>& values, std::int64_t width, std::int64_t num_tokens) {
  return at::from_blob(values.data(), {width, width}, at::kDouble) /
         static_cast<double>(num_tokens);
}

void check_tokens(const std::vector<CodedBlock>& blocks, const ModelConfig& config,
                  std::int64_t num_tokens) {
  for (const CodedBlock& block : blocks) {
    const std::int64_t least = least_calibration_tokens(block, config);
    KVC_CHECK(num_tokens >= least,
              "{}: the covariance of its {} channels was measured on {} tokens, expected at least "
              "{}; calibrate with more text, or use a smaller --scope or --group",
              name_of(block), num_channels(block, config), num_tokens, least);
  }
}

}  // namespace

RunStatistics::RunStatistics(const ConversionJob& job, const LayerRun& run,
                             const std::vector<CodedBlock>& blocks)
    : job_(job), run_(run) {
  const std::int64_t width = 2 * run.num_layers * job.config.kv_dim();
  {
    JointSum sum = read_joint_sum(job.covariance, job.checkpoint.hash(), run.first_layer, width);
    check_tokens(blocks, job.config, sum.num_tokens);
    const at::Tensor total = at::from_blob(sum.sum.data(), {width}, at::kDouble);
    mean_ = total / static_cast<double>(sum.num_tokens);
    covariance_ = matrix_of(sum.second_moment, width, sum.num_tokens).sub_(mean_.outer(mean_));
  }
  const CacheMetric choice = job.settings.coded.metric;
  if (choice == CacheMetric::kAttention || choice == CacheMetric::kScaledAttention) {
    load_attention_metric();
  }
  if (choice == CacheMetric::kFisher || choice == CacheMetric::kScaledAttention) {
    MetricSum sum = read_gradient_metric(job.metric, job.checkpoint.hash(), run.first_layer, width);
    const at::Tensor gradient = matrix_of(sum.values, width, sum.num_tokens);
    if (choice == CacheMetric::kFisher) {
      metric_ = gradient;
    } else {
      scale_to_gradient(gradient);
    }
  }
}

// Block-diagonal: per layer the heads' keys, then the heads' values.
void RunStatistics::load_attention_metric() {
  const ModelConfig& config = job_.config;
  std::vector<at::Tensor> heads;
  for (int layer = run_.first_layer; layer < run_.end(); ++layer) {
    MetricSum sum = read_attention_metric(job_.covariance, job_.checkpoint.hash(), layer,
                                          config.num_kv_heads, config.head_dim);
    const at::Tensor all =
        at::from_blob(sum.values.data(),
                      {2 * config.num_kv_heads, config.head_dim, config.head_dim}, at::kDouble) /
        static_cast<double>(sum.num_tokens);
    for (const at::Tensor& head : all.unbind(0)) {
      heads.push_back(head);
    }
  }
  metric_ = at::block_diag(heads);
}

// Each layer's keys, and its values, get the energy tr(M C) that the gradient gives them.
void RunStatistics::scale_to_gradient(const at::Tensor& gradient) {
  const std::int64_t width = job_.config.kv_dim();
  for (std::int64_t first = 0; first < metric_.size(0); first += width) {
    const auto part = [&](const at::Tensor& matrix) {
      return matrix.narrow(0, first, width).narrow(1, first, width);
    };
    const auto energy = [&](const at::Tensor& metric) {
      return (part(metric) * part(covariance_)).sum().item<double>();
    };
    const double own = energy(metric_);
    part(metric_).mul_(own > 0 ? energy(gradient) / own : 1);
  }
}

at::Tensor RunStatistics::channels(const CodedBlock& block) const {
  return at::tensor(channels_in_run(block, run_, job_.config), at::kLong);
}

at::Tensor RunStatistics::mean(const CodedBlock& block) const {
  return mean_.index_select(0, channels(block));
}

at::Tensor RunStatistics::covariance(const CodedBlock& block) const {
  const at::Tensor index = channels(block);
  return covariance_.index_select(0, index).index_select(1, index);
}

at::Tensor RunStatistics::metric(const CodedBlock& block) const {
  const std::int64_t part_width = num_channels(block, job_.config) / (2 * block.num_layers);
  if (!metric_.defined()) {
    return at::eye(num_channels(block, job_.config), at::kDouble);
  }
  const at::Tensor index = channels(block);
  at::Tensor metric = metric_.index_select(0, index).index_select(1, index);
  if (block.num_layers == 1) {
    metric.narrow(0, 0, part_width).narrow(1, part_width, part_width).zero_();
    metric.narrow(0, part_width, part_width).narrow(1, 0, part_width).zero_();
  }
  return damped_cache_metric(std::move(metric), part_width);
}

}  // namespace kvc

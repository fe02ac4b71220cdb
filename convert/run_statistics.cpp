#include "convert/run_statistics.h"

#include <utility>
#include <vector>

#include "core/kv_plan.h"
#include "core/statistics_file.h"

namespace kvc {
namespace {

// sums / num_tokens
at::Tensor mean_of(std::vector<double>& sums, at::IntArrayRef shape, std::int64_t num_tokens) {
  return at::from_blob(sums.data(), shape, at::kDouble) / static_cast<double>(num_tokens);
}

// Block-diagonal: per layer the heads' keys, then the heads' values.
at::Tensor read_attention(const ConversionJob& job, const LayerRun& run) {
  const ModelConfig& config = job.config;
  std::vector<at::Tensor> heads;
  for (int layer = run.first_layer; layer < run.end(); ++layer) {
    MetricSum sum = read_attention_metric(job.inputs.covariance, job.checkpoint.hash(), layer,
                                          config.num_kv_heads, config.head_dim);
    const at::Tensor all = mean_of(
        sum.values, {2 * config.num_kv_heads, config.head_dim, config.head_dim}, sum.num_tokens);
    for (const at::Tensor& head : all.unbind(0)) {
      heads.push_back(head);
    }
  }
  return at::block_diag(heads);
}

at::Tensor read_gradient(const ConversionJob& job, const LayerRun& run, std::int64_t width) {
  MetricSum sum =
      read_gradient_metric(job.inputs.metric, job.checkpoint.hash(), run.first_layer, width);
  return mean_of(sum.values, {width, width}, sum.num_tokens);
}

// Each layer's keys, and its values, get the energy tr(M C) that the gradient gives them.
void scale_to_gradient(at::Tensor& metric, const at::Tensor& gradient, const at::Tensor& covariance,
                       std::int64_t part_width) {
  for (std::int64_t first = 0; first < metric.size(0); first += part_width) {
    const auto part = [&](const at::Tensor& matrix) {
      return matrix.narrow(0, first, part_width).narrow(1, first, part_width);
    };
    const auto energy = [&](const at::Tensor& of) {
      return (part(of) * part(covariance)).sum().item<double>();
    };
    const double own = energy(metric);
    part(metric).mul_(own > 0 ? energy(gradient) / own : 1);
  }
}

}  // namespace

RunStatistics read_run_statistics(const ConversionJob& job, const LayerRun& run,
                                  CacheMetric choice) {
  const std::int64_t width = run.num_layers * grouped_widths(job.result.plan).total();
  RunStatistics statistics;
  {
    JointSum sum =
        read_joint_sum(job.inputs.covariance, job.checkpoint.hash(), run.first_layer, width);
    statistics.num_tokens = sum.num_tokens;
    statistics.mean = mean_of(sum.sum, {width}, sum.num_tokens);
    statistics.covariance = mean_of(sum.second_moment, {width, width}, sum.num_tokens)
                                .sub_(statistics.mean.outer(statistics.mean));
  }
  if (choice == CacheMetric::kFisher) {
    statistics.metric = read_gradient(job, run, width);
  } else if (needs_attention(choice)) {
    statistics.metric = read_attention(job, run);
  }
  if (choice == CacheMetric::kScaledAttention) {
    scale_to_gradient(statistics.metric, read_gradient(job, run, width), statistics.covariance,
                      job.config.kv_dim());
  }
  return statistics;
}

}  // namespace kvc

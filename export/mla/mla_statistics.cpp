#include "export/mla/mla_statistics.h"

#include "core/statistics_file.h"

namespace kvc {
namespace {

// sums / num_tokens
at::Tensor mean_of(std::vector<double>& sums, at::IntArrayRef shape, std::int64_t num_tokens) {
  return at::from_blob(sums.data(), shape, at::kDouble) / static_cast<double>(num_tokens);
}

}  // namespace

MlaStatistics read_mla_statistics(const std::filesystem::path& covariance,
                                  const std::string& checkpoint_hash, const ModelConfig& config,
                                  int layer) {
  const std::int64_t kv_heads = config.num_kv_heads, head_dim = config.head_dim;
  const std::int64_t width = 2 * config.kv_dim();
  JointSum joint = read_joint_sum(covariance, checkpoint_hash, layer, width);
  AttentionReach reach = read_attention_reach(covariance, checkpoint_hash, layer, config.num_heads,
                                              kv_heads, head_dim);
  MlaStatistics statistics;
  statistics.mean = mean_of(joint.sum, {width}, joint.num_tokens);
  statistics.covariance = mean_of(joint.second_moment, {width, width}, joint.num_tokens)
                              .sub_(statistics.mean.outer(statistics.mean));
  statistics.value_metric =
      mean_of(reach.value_metric, {kv_heads, head_dim, head_dim}, reach.num_tokens);
  statistics.query_metric =
      mean_of(reach.query_metric, {kv_heads, head_dim, head_dim}, reach.num_tokens);
  statistics.distance_weight =
      mean_of(reach.distance_weight, {config.num_heads, kNumDistances}, reach.num_tokens);
  return statistics;
}

}  // namespace kvc

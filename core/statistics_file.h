// Readers of the files of sums (layouts are documented with their writers: calibrate/calibrate.h,
// calibrate/covariance.h, fisher/fisher.h, fisher/metric.h). Values in float64.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvc {

struct FisherInformation {
  std::vector<double> channel;  // [num_layers, 2, kv_dim], mean over sequences; 0 = key, 1 = value
  std::vector<double> score;    // [num_layers], k_proj plus v_proj
};
// Error when `file` belongs to another checkpoint.
FisherInformation read_fisher(const std::filesystem::path& file, const std::string& checkpoint_hash,
                              int num_layers, std::int64_t kv_dim);

// sum x x^T of one layer's projection input, and the number of tokens summed.
struct GramSum {
  std::vector<double> gram;  // [hidden_size, hidden_size]
  std::int64_t num_tokens = 0;
};
GramSum read_gram(const std::filesystem::path& calibration, const std::string& checkpoint_hash,
                  int layer, std::int64_t hidden_size);

// Run of layers from `first_layer` on: sum y and sum y y^T of its stacked keys and values over num_tokens
// tokens, n = `width` of them.
struct JointSum {
  std::vector<double> sum;            // [n]
  std::vector<double> second_moment;  // [n, n]
  std::int64_t num_tokens = 0;
};
JointSum read_joint_sum(const std::filesystem::path& covariance, const std::string& checkpoint_hash,
                        int first_layer, std::int64_t width);

// A metric's sums over num_tokens tokens.
struct MetricSum {
  std::vector<double> values;
  std::int64_t num_tokens = 0;
};
// Gradient metric: sum g g^T of a run of layers. [n, n]
MetricSum read_gradient_metric(const std::filesystem::path& metric,
                               const std::string& checkpoint_hash, int first_layer,
                               std::int64_t width);
// Attention metric of one layer: keys, then values. [2, num_kv_heads, head_dim, head_dim]
MetricSum read_attention_metric(const std::filesystem::path& covariance,
                                const std::string& checkpoint_hash, int layer,
                                std::int64_t num_kv_heads, std::int64_t head_dim);

// What a layer's attention looks back at (calibrate/attention_metric.h), as sums over num_tokens tokens.
inline constexpr std::int64_t kNumDistances = 2048;  // the last one also counts all larger ones
struct AttentionReach {
  std::vector<double> query_metric;     // [num_kv_heads, head_dim, head_dim], of queries pre-RoPE
  std::vector<double> value_metric;     // the same, of values
  std::vector<double> distance_weight;  // [num_heads, kNumDistances], by query minus key position
  std::int64_t num_tokens = 0;
};
AttentionReach read_attention_reach(const std::filesystem::path& covariance,
                                    const std::string& checkpoint_hash, int layer,
                                    std::int64_t num_heads, std::int64_t num_kv_heads,
                                    std::int64_t head_dim);

}  // namespace kvc

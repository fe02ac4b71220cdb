// What a layer's keys, values and queries did on calibration text, as means over tokens. float64
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <string>

#include "model/config.h"

namespace kvc {

struct MlaStatistics {
  at::Tensor mean;        // [2 * kv_dim], keys (pre-RoPE), then values
  at::Tensor covariance;  // [2 * kv_dim, 2 * kv_dim], about the mean
  // Weights of errors (calibrate/attention_metric.h). [num_kv_heads, head_dim, head_dim]
  at::Tensor query_metric, value_metric;
  at::Tensor distance_weight;  // [num_heads, kNumDistances]
};

// From covariance.h5 of single layers with attention's metric, the key's left out or not. Error where it is of another checkpoint.
MlaStatistics read_mla_statistics(const std::filesystem::path& covariance,
                                  const std::string& checkpoint_hash, const ModelConfig& config,
                                  int layer);

}  // namespace kvc

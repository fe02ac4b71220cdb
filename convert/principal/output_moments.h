// Second moments of what a group's layers cache: complete keys before RoPE and after their norm, and values.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/kv_plan.h"
#include "model/layer_stream.h"

namespace kvc {

// [num_tokens, kv_dim] float32 each.
struct LayerRows {
  at::Tensor key, value;
};
LayerRows cached_rows(const LayerActivations& activations);

// Sums over tokens of y and y y^T in float64, y stacked layer by layer: key, then value.
class OutputMoments {
 public:
  OutputMoments(const LatentGroup& group, std::int64_t kv_dim);

  // One layer of one batch, summed on its device; a batch's layers come one after the other.
  void add(const LayerActivations& activations);

  std::int64_t num_tokens() const { return num_tokens_; }
  at::Tensor mean() const;        // [2 * num_layers * kv_dim] float64
  at::Tensor covariance() const;  // [.., ..] float64, about the mean; both on the CPU

 private:
  LatentGroup group_;
  std::int64_t kv_dim_, num_tokens_ = 0;
  at::Tensor stacked_;  // [num_tokens, rows] y of the current batch
  at::Tensor sum_, products_;
};

}  // namespace kvc

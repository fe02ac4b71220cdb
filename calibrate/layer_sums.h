// The float64 sums of calibration.h5: those of one layer, and those of a layer with the next one.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/hdf5.h"

namespace kvc {

struct LayerSums {
  LayerSums(std::int64_t hidden_size, std::int64_t kv_dim, at::Device device = at::kCPU);
  // Adds one sequence, on the sums' device. hidden [num_tokens, hidden_size]; key, value [num_tokens, kv_dim]
  void add(const at::Tensor& hidden, const at::Tensor& key, const at::Tensor& value);
  // As /layers/<layer>/...; Error when a sum is not finite.
  void write(Hdf5Writer& file, int layer) const;

  at::Tensor gram;                                    // [hidden_size, hidden_size]
  at::Tensor key_sum, value_sum;                      // [kv_dim]
  at::Tensor key_second_moment, value_second_moment;  // [kv_dim, kv_dim]
};

struct PairSums {
  explicit PairSums(std::int64_t kv_dim, at::Device device = at::kCPU);
  // Adds one sequence, of any device: keys and values of a layer and of the next one, each [num_tokens, kv_dim].
  void add(const at::Tensor& key, const at::Tensor& value, const at::Tensor& next_key,
           const at::Tensor& next_value);
  // As /pairs/<layer>/...
  void write(Hdf5Writer& file, int layer) const;

  at::Tensor key_cross, value_cross;            // [kv_dim, kv_dim], sum a_l a_{l+1}^T
  at::Tensor key_cosine_sum, value_cosine_sum;  // [1]
};

}  // namespace kvc

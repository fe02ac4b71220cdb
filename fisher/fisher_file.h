// The sums of fisher.h5.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/hdf5.h"

namespace kvc {

// Sum over sequences of the squared gradients of one layer's projections.
class SquaredGradients {
 public:
  SquaredGradients(std::int64_t kv_dim, std::int64_t hidden_size, at::Device device = at::kCPU);
  // One sequence's gradients, each [kv_dim, hidden_size], on the sums' device.
  void add(const at::Tensor& k_proj, const at::Tensor& v_proj);
  const at::Tensor& sum() const { return sum_; }
  std::int64_t num_sequences() const { return num_sequences_; }

 private:
  at::Tensor sum_;  // [2, kv_dim, hidden_size] float64
  std::int64_t num_sequences_ = 0;
};

struct FisherSums {
  FisherSums(int num_layers, std::int64_t kv_dim);
  void add_loss(double mean_nll, std::int64_t num_scored);
  void set_layer(int layer, const SquaredGradients& squares);
  void write(Hdf5Writer& file) const;

  std::int64_t kv_dim;
  std::int64_t num_sequences = 0;
  std::int64_t num_tokens = 0;
  double loss_sum = 0;
  std::vector<double> channel_sum;  // [num_layers, 2, kv_dim]
  std::vector<double> rms_sum;      // [num_layers, 2], or empty
};

FisherSums read_fisher_sums(const Hdf5Reader& file);

}  // namespace kvc

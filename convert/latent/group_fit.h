// Results of one pass over the calibration tokens for a group: how well latents of single layers
// and of merged tokens reproduce its keys and values, and the reconstruction refitted to merged
// latents.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "convert/factor_choice.h"
#include "core/kv_plan.h"
#include "model/layer_stream.h"

namespace kvc {

inline constexpr std::int64_t kSliceTokens = 1024;  // widened to float64 at a time

// Bias-free pre-RoPE keys (before k_norm) and values of one layer and batch. [num_tokens, kv_dim]
// each
struct KeysValues {
  at::Tensor key, value;
};
KeysValues bias_free(const LayerActivations& activations);

// The first tokens of a pass, in memory.
class FormSample {
 public:
  // Tokens of layer `member` of a group, whose batches come in the same order for every layer. hidden [num_tokens, hidden_size]
  void add(const at::Tensor& hidden, const KeysValues& exact, int member);
  // [num_layers][batches], rows in the order of a group's stacked y
  const std::vector<std::vector<LayerSample>>& layers() const { return layers_; }

 private:
  std::vector<std::vector<LayerSample>> layers_;
};

// Relative Frobenius errors over all tokens and layers of a group.
struct FitErrors {
  double key = 0, value = 0;
};

// sum ||y - B A x||^2 and sum ||y||^2.
class ErrorSum {
 public:
  void add(const at::Tensor& y, const at::Tensor& reconstructed);
  void add(double squared_error, double energy);
  double relative() const;  // 0 without energy

 private:
  double error_ = 0, energy_ = 0;
};

// How a merged token's latent is made: `encoder` P [rank, rows] for rule ls, else `weights`
// [num_layers]; neither for rule none.
struct Merger {
  at::Tensor encoder;
  std::vector<double> weights;
};

class GroupFit {
 public:
  // A [rank, hidden_size] and B [rows, rank] in float64, on the CPU, as all results are; `device` is where the
  // activations will be.
  GroupFit(const LatentGroup& group, std::int64_t kv_dim, const at::Tensor& latent_proj,
           const at::Tensor& reconstruct_proj, Merger merger, at::Device device = at::kCPU);

  // One layer of one batch; a batch's layers come one after the other.
  void add(const LayerActivations& activations);

  FitErrors unmerged_errors() const { return {key_.relative(), value_.relative()}; }
  // The same for merged tokens reconstructed with `reconstruct_proj` [rows, rank].
  FitErrors merged_errors(const at::Tensor& reconstruct_proj) const;
  // B refitted to merged latents h: B + (sum (y - B h) h^T)(sum h h^T + ridge I)^-1, ridge 1e-6 of
  // the mean square of h. The ridge pulls towards B, not towards zero: it never raises the
  // calibration error, and directions without calibration tokens keep their reconstruction. [rows,
  // rank] float64
  at::Tensor refit() const;

  // The first tokens, for latents of single layers.
  const FormSample& sample() const { return sample_; }
  const Merger& merger() const { return merger_; }

 private:
  bool merges() const { return merger_.encoder.defined() || !merger_.weights.empty(); }
  void finish_batch();

  LatentGroup group_;
  std::int64_t kv_dim_;
  at::Tensor latent_proj_, reconstruct_proj_;  // float64; the second on the CPU
  at::Tensor latent32_, reconstruct32_;        // what the conversion stores
  Merger merger_;
  ErrorSum key_, value_;
  at::Tensor stacked_;          // [num_tokens, rows] y of the current batch
  at::Tensor mixed_;            // [num_tokens, hidden_size] sum_l w_l x_l of the current batch
  at::Tensor cross_;            // [rows, rank] float64, sum y h^T
  at::Tensor moment_;           // [rank, rank] float64, sum h h^T
  std::vector<double> energy_;  // [2 * num_layers] sum ||y||^2 of keys and values, layer by layer
  FormSample sample_;
};

}  // namespace kvc

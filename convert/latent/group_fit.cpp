#include "convert/latent/group_fit.h"

#include <algorithm>
#include <cmath>

namespace kvc {
namespace {

constexpr double kRidge = 1e-6;  // relative to the mean eigenvalue of sum h h^T
constexpr std::int64_t kSampleTokens = 1024;

// Squares and sums in float64.
double squared_norm(const at::Tensor& x) {
  const double norm = at::linalg_vector_norm(x, 2, std::nullopt, false, at::kDouble).item<double>();
  return norm * norm;
}

}  // namespace

KeysValues bias_free(const LayerActivations& activations) {
  const auto flatten = [](const at::Tensor& x, const at::Tensor& bias) {
    const at::Tensor flat = x.flatten(1);
    return bias.defined() ? flat - bias : flat;
  };
  return {flatten(activations.key, activations.weights.k_proj.bias),
          flatten(activations.value, activations.weights.v_proj.bias)};
}

void FormSample::add(const at::Tensor& hidden, const KeysValues& exact, int member) {
  layers_.resize(std::max(layers_.size(), static_cast<std::size_t>(member) + 1));
  std::vector<LayerSample>& batches = layers_[static_cast<std::size_t>(member)];
  std::int64_t missing = kSampleTokens;
  for (const LayerSample& batch : batches) {
    missing -= batch.inputs.size(0);
  }
  const std::int64_t count = std::min(missing, hidden.size(0));
  if (count <= 0) {
    return;
  }
  const auto first = [count](const at::Tensor& rows) {
    return rows.narrow(0, 0, count)
        .to(at::TensorOptions(at::kCPU).dtype(at::kFloat),
            /*non_blocking=*/false, /*copy=*/true);
  };
  const std::int64_t stacked = exact.key.size(1) + exact.value.size(1);
  batches.push_back({first(hidden), first(exact.key), first(exact.value), member * stacked});
}

void ErrorSum::add(const at::Tensor& y, const at::Tensor& reconstructed) {
  add(squared_norm(y - reconstructed), squared_norm(y));
}

void ErrorSum::add(double squared_error, double energy) {
  error_ += std::max(0.0, squared_error);
  energy_ += energy;
}

double ErrorSum::relative() const { return energy_ > 0 ? std::sqrt(error_ / energy_) : 0; }

GroupFit::GroupFit(const LatentGroup& group, std::int64_t kv_dim, const at::Tensor& latent_proj,
                   const at::Tensor& reconstruct_proj, Merger merger, at::Device device)
    : group_(group),
      kv_dim_(kv_dim),
      latent_proj_(latent_proj.to(device)),
      reconstruct_proj_(reconstruct_proj),
      latent32_(latent_proj.to(device, at::kFloat)),
      reconstruct32_(reconstruct_proj.to(device, at::kFloat)),
      merger_(std::move(merger)),
      energy_(static_cast<std::size_t>(2 * group.num_layers), 0.0) {
  if (merges()) {
    const std::int64_t rank = reconstruct_proj.size(1);
    const at::TensorOptions sums = at::TensorOptions(device).dtype(at::kDouble);
    cross_ = at::zeros({reconstruct_proj.size(0), rank}, sums);
    moment_ = at::zeros({rank, rank}, sums);
    if (merger_.encoder.defined()) {
      merger_.encoder = merger_.encoder.to(device);
    }
  }
}

void GroupFit::add(const LayerActivations& activations) {
  const int member = activations.layer - group_.first_layer;
  const at::Tensor hidden = activations.hidden.to(at::kFloat);
  const KeysValues exact = bias_free(activations);
  sample_.add(hidden, exact, member);
  const at::Tensor latent = at::mm(hidden, latent32_.t());
  const auto add_errors = [&](ErrorSum& sum, const at::Tensor& y, int block) {
    const at::Tensor rows = reconstruct32_.narrow(0, block * kv_dim_, kv_dim_);
    sum.add(y, at::mm(latent, rows.t()));
    energy_[static_cast<std::size_t>(block)] += squared_norm(y);
  };
  add_errors(key_, exact.key, 2 * member);
  add_errors(value_, exact.value, 2 * member + 1);
  if (!merges()) {
    return;
  }
  if (member == 0) {
    stacked_ = at::empty({hidden.size(0), reconstruct_proj_.size(0)}, hidden.options());
    mixed_ = merger_.encoder.defined() ? at::Tensor() : at::zeros_like(hidden);
  }
  stacked_.narrow(1, 2 * member * kv_dim_, kv_dim_).copy_(exact.key);
  stacked_.narrow(1, (2 * member + 1) * kv_dim_, kv_dim_).copy_(exact.value);
  if (mixed_.defined()) {
    mixed_.add_(hidden, merger_.weights[static_cast<std::size_t>(member)]);
  }
  if (member == group_.num_layers - 1) {
    finish_batch();
  }
}

void GroupFit::finish_batch() {
  for (std::int64_t begin = 0; begin < stacked_.size(0); begin += kSliceTokens) {
    const std::int64_t count = std::min(kSliceTokens, stacked_.size(0) - begin);
    const at::Tensor y = stacked_.narrow(0, begin, count).to(at::kDouble);
    const at::Tensor h =
        merger_.encoder.defined()
            ? at::mm(y, merger_.encoder.t())
            : at::mm(mixed_.narrow(0, begin, count).to(at::kDouble), latent_proj_.t());
    cross_.addmm_(y.t(), h);
    moment_.addmm_(h.t(), h);
  }
  stacked_.reset();
  mixed_.reset();
}

FitErrors GroupFit::merged_errors(const at::Tensor& reconstruct_proj) const {
  ErrorSum sums[2];  // keys, values
  for (std::int64_t block = 0; block < 2 * group_.num_layers; ++block) {
    const at::Tensor rows =
        reconstruct_proj.narrow(0, block * kv_dim_, kv_dim_).to(moment_.device());
    const at::Tensor cross = cross_.narrow(0, block * kv_dim_, kv_dim_);
    // ||y - B h||^2 = ||y||^2 + <B, B sum h h^T - 2 sum y h^T>
    const double change = at::mm(rows, moment_).sub_(cross, 2).mul_(rows).sum().item<double>();
    const double energy = energy_[static_cast<std::size_t>(block)];
    sums[block % 2].add(energy + change, energy);
  }
  return {sums[0].relative(), sums[1].relative()};
}

at::Tensor GroupFit::refit() const {
  const double mean = moment_.diagonal().mean().item<double>();
  if (!(mean > 0)) {
    return reconstruct_proj_.clone();
  }
  at::Tensor normal = moment_.clone();
  normal.diagonal().add_(kRidge * mean);
  at::Tensor residual = at::addmm(cross_, reconstruct_proj_.to(moment_.device()), moment_, 1, -1);
  const at::Tensor factor = at::linalg_cholesky(normal);
  normal.reset();
  return at::cholesky_solve(residual.t(), factor).t().cpu().add(reconstruct_proj_);
}

}  // namespace kvc

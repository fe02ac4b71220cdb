#include "convert/latent/ls_encoder.h"

#include "core/error.h"

namespace kvc {
namespace {

constexpr double kSmallestWeight = 1e-3;  // relative to the mean of a layer's keys or values

}  // namespace

at::Tensor ls_encoder(const GroupFactorization& factors, const at::Tensor& weights) {
  const at::Tensor root = factors.singular_values.sqrt();
  // U = B diag(s)^-1/2 is orthonormal, so U^T F U is as well conditioned as F itself.
  const at::Tensor u = factors.reconstruct_proj.div(root);
  if (!weights.defined()) {
    return u.div(root).t().contiguous();
  }
  const at::Tensor weighted = u.mul(weights.unsqueeze(1));  // F U
  const at::Tensor normal = at::linalg_cholesky(at::mm(u.t(), weighted));
  return at::cholesky_solve(weighted.t().contiguous(), normal).div_(root.unsqueeze(1));
}

at::Tensor ls_channel_weights(const LatentGroup& group, const std::vector<double>& fisher_channel,
                              std::int64_t kv_dim) {
  const std::int64_t blocks = 2 * group.num_layers;
  const auto begin = static_cast<std::size_t>(2 * group.first_layer * kv_dim);
  const auto count = static_cast<std::size_t>(blocks * kv_dim);
  KVC_CHECK(begin + count <= fisher_channel.size(), "Fisher weights: {} channels, {} needed",
            fisher_channel.size(), begin + count);
  at::Tensor weights = at::empty({blocks, kv_dim}, at::kDouble);
  std::copy_n(fisher_channel.begin() + static_cast<std::ptrdiff_t>(begin), count,
              weights.mutable_data_ptr<double>());
  const double overall = weights.mean().item<double>();
  if (!(overall > 0)) {
    return at::ones({blocks * kv_dim}, at::kDouble);
  }
  const at::Tensor floor = weights.mean(1, true).mul(kSmallestWeight);
  return at::maximum(weights, floor.clamp_min(kSmallestWeight * kSmallestWeight * overall))
      .div(overall)
      .flatten();
}

}  // namespace kvc

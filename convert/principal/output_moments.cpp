#include "convert/principal/output_moments.h"

#include <algorithm>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::int64_t kSliceTokens = 1024;  // widened to float64 at a time

}  // namespace

LayerRows cached_rows(const LayerActivations& activations) {
  return {activations.weights.k_norm.over_heads(activations.key).flatten(1).to(at::kFloat),
          activations.value.flatten(1).to(at::kFloat)};
}

OutputMoments::OutputMoments(const LatentGroup& group, std::int64_t kv_dim)
    : group_(group), kv_dim_(kv_dim) {
  const std::int64_t rows = 2 * group.num_layers * kv_dim;
  sum_ = at::zeros({rows}, at::kDouble);
  products_ = at::zeros({rows, rows}, at::kDouble);
}

void OutputMoments::add(const LayerActivations& activations) {
  const int member = activations.layer - group_.first_layer;
  const LayerRows rows = cached_rows(activations);
  if (member == 0) {
    stacked_ = at::empty({rows.key.size(0), products_.size(0)}, rows.key.options());
  }
  stacked_.narrow(1, 2 * member * kv_dim_, kv_dim_).copy_(rows.key);
  stacked_.narrow(1, (2 * member + 1) * kv_dim_, kv_dim_).copy_(rows.value);
  if (member + 1 < group_.num_layers) {
    return;
  }
  for (std::int64_t begin = 0; begin < stacked_.size(0); begin += kSliceTokens) {
    const at::Tensor y =
        stacked_.narrow(0, begin, std::min(kSliceTokens, stacked_.size(0) - begin)).to(at::kDouble);
    if (products_.device() != y.device()) {
      sum_ = sum_.to(y.device());
      products_ = products_.to(y.device());
    }
    sum_.add_(y.sum(0));
    products_.addmm_(y.t(), y);
  }
  num_tokens_ += stacked_.size(0);
}

at::Tensor OutputMoments::mean() const { return sum_.cpu() / static_cast<double>(num_tokens_); }

at::Tensor OutputMoments::covariance() const {
  KVC_CHECK(num_tokens_ > 0, "layers {}-{}: no calibration tokens", group_.first_layer,
            group_.first_layer + group_.num_layers - 1);
  const at::Tensor centre = mean();
  return products_.cpu() / static_cast<double>(num_tokens_) - at::outer(centre, centre);
}

}  // namespace kvc

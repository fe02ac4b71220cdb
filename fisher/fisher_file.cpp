#include "fisher/fisher_file.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace kvc {
namespace {

void copy_rows(const at::Tensor& values, std::int64_t row, std::vector<double>& into) {
  const at::Tensor flat = values.cpu().contiguous();
  std::copy_n(flat.const_data_ptr<double>(), flat.numel(), into.begin() + row * flat.numel());
}

}  // namespace

SquaredGradients::SquaredGradients(std::int64_t kv_dim, std::int64_t hidden_size, at::Device device)
    : sum_(at::zeros({2, kv_dim, hidden_size}, at::TensorOptions(device).dtype(at::kDouble))) {}

void SquaredGradients::add(const at::Tensor& k_proj, const at::Tensor& v_proj) {
  const at::Tensor gradient = at::stack({k_proj, v_proj}).to(at::kDouble);
  sum_.addcmul_(gradient, gradient);
  ++num_sequences_;
}

FisherSums::FisherSums(int num_layers, std::int64_t kv_dim_in)
    : kv_dim(kv_dim_in),
      channel_sum(static_cast<std::size_t>(num_layers * 2 * kv_dim_in)),
      rms_sum(static_cast<std::size_t>(num_layers * 2)) {}

void FisherSums::add_loss(double mean_nll, std::int64_t num_scored) {
  loss_sum += mean_nll;
  num_tokens += num_scored;
  ++num_sequences;
}

void FisherSums::set_layer(int layer, const SquaredGradients& squares) {
  const at::Tensor channels = squares.sum().sum(-1);  // [2, kv_dim]
  KVC_CHECK(at::isfinite(channels).all().item<bool>(),
            "layer {}: its gradients are not finite; does the checkpoint hold NaN or infinity?",
            layer);
  const at::Tensor mean = squares.sum() / static_cast<double>(squares.num_sequences());
  copy_rows(channels, layer, channel_sum);
  copy_rows(mean.sqrt().sum({-2, -1}), layer, rms_sum);
}

void FisherSums::write(Hdf5Writer& file) const {
  const std::int64_t num_layers = static_cast<std::int64_t>(channel_sum.size()) / (2 * kv_dim);
  file.dataset("/num_sequences", std::vector<std::int64_t>{num_sequences}, {1});
  file.dataset("/num_tokens", std::vector<std::int64_t>{num_tokens}, {1});
  file.dataset("/loss_sum", std::vector<double>{loss_sum}, {1});
  file.dataset("/channel_sum", channel_sum, {num_layers, 2, kv_dim},
               {"layer", "key, value", "channel"});
  if (!rms_sum.empty()) {
    file.dataset("/rms_sum", rms_sum, {num_layers, 2}, {"layer", "key, value"});
  }
}

FisherSums read_fisher_sums(const Hdf5Reader& file) {
  const std::vector<std::int64_t> shape = file.shape("/channel_sum");
  KVC_CHECK(shape.size() == 3 && shape[0] > 0 && shape[1] == 2 && shape[2] > 0,
            "{}:/channel_sum: expected shape [num_layers, 2, kv_dim]", file.path().string());
  FisherSums sums(0, shape[2]);
  sums.num_sequences = file.ints("/num_sequences", {1}).front();
  sums.num_tokens = file.ints("/num_tokens", {1}).front();
  sums.loss_sum = file.doubles("/loss_sum", {1}).front();
  sums.channel_sum = file.doubles("/channel_sum", shape);
  KVC_CHECK(sums.num_sequences > 0 && sums.num_tokens > 0, "{}: no count of a finished run",
            file.path().string());
  return sums;
}

}  // namespace kvc

#include "calibrate/layer_sums.h"

#include <limits>

#include "core/error.h"
#include "model/sum_files.h"

namespace kvc {
namespace {

at::Tensor zeros(const std::vector<std::int64_t>& shape, at::Device device) {
  return at::zeros(shape, at::TensorOptions(device).dtype(at::kDouble));
}

void check_finite(const at::Tensor& sum, int layer) {
  KVC_CHECK(at::isfinite(sum).all().item<bool>(),
            "layer {}: its activations are not finite; does the checkpoint hold NaN or infinity?",
            layer);
}

// Tokens whose vector is zero in one of the layers count as cosine 0.
at::Tensor cosine_sum(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor norms = a.norm(2, -1) * b.norm(2, -1);
  return ((a * b).sum(-1) / norms.clamp_min(std::numeric_limits<double>::min())).sum().reshape({1});
}

}  // namespace

LayerSums::LayerSums(std::int64_t hidden_size, std::int64_t kv_dim, at::Device device)
    : gram(zeros({hidden_size, hidden_size}, device)),
      key_sum(zeros({kv_dim}, device)),
      value_sum(zeros({kv_dim}, device)),
      key_second_moment(zeros({kv_dim, kv_dim}, device)),
      value_second_moment(zeros({kv_dim, kv_dim}, device)) {}

void LayerSums::add(const at::Tensor& hidden, const at::Tensor& key, const at::Tensor& value) {
  const at::Tensor x = hidden.to(at::kDouble), k = key.to(at::kDouble), v = value.to(at::kDouble);
  gram.addmm_(x.t(), x);
  key_sum.add_(k.sum(0));
  value_sum.add_(v.sum(0));
  key_second_moment.addmm_(k.t(), k);
  value_second_moment.addmm_(v.t(), v);
}

void LayerSums::write(Hdf5Writer& file, int layer) const {
  check_finite(gram, layer);
  check_finite(key_second_moment, layer);
  check_finite(value_second_moment, layer);
  const std::string group = fmt::format("/layers/{}/", layer);
  write_tensor(file, group + "gram", gram, {"input channel", "input channel"});
  write_tensor(file, group + "key_sum", key_sum, {"channel"});
  write_tensor(file, group + "value_sum", value_sum, {"channel"});
  write_tensor(file, group + "key_second_moment", key_second_moment, {"channel", "channel"});
  write_tensor(file, group + "value_second_moment", value_second_moment, {"channel", "channel"});
}

PairSums::PairSums(std::int64_t kv_dim, at::Device device)
    : key_cross(zeros({kv_dim, kv_dim}, device)),
      value_cross(zeros({kv_dim, kv_dim}, device)),
      key_cosine_sum(zeros({1}, device)),
      value_cosine_sum(zeros({1}, device)) {}

void PairSums::add(const at::Tensor& key, const at::Tensor& value, const at::Tensor& next_key,
                   const at::Tensor& next_value) {
  const auto wide = [&](const at::Tensor& x) { return x.to(key_cross.device(), at::kDouble); };
  const at::Tensor k = wide(key), next_k = wide(next_key), v = wide(value),
                   next_v = wide(next_value);
  key_cross.addmm_(k.t(), next_k);
  value_cross.addmm_(v.t(), next_v);
  key_cosine_sum.add_(cosine_sum(k, next_k));
  value_cosine_sum.add_(cosine_sum(v, next_v));
}

void PairSums::write(Hdf5Writer& file, int layer) const {
  const std::string group = fmt::format("/pairs/{}/", layer);
  write_tensor(file, group + "key_cross", key_cross, {"channel", "next layer's channel"});
  write_tensor(file, group + "value_cross", value_cross, {"channel", "next layer's channel"});
  write_tensor(file, group + "key_cosine_sum", key_cosine_sum, {});
  write_tensor(file, group + "value_cosine_sum", value_cosine_sum, {});
}

}  // namespace kvc

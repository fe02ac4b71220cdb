#include "runtime/gpu/rank_factors.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "runtime/attention/cache_segments.h"
#include "runtime/gpu/gpu_cache.h"

namespace kvc {
namespace {

constexpr std::int64_t kRankStep = 32;  // of a row of the key projection

std::int64_t round_up(std::int64_t count, std::int64_t step) {
  return (count + step - 1) / step * step;
}

// Channels and angles of a head's pairs, -1 where there is none: what turns together, then the others.
struct HeadPairs {
  std::vector<std::int64_t> first, second, angles;
};
HeadPairs pairs_of(std::int64_t head_dim, const RopeRows& rope) {
  const std::int64_t turned = rope.cos.defined() ? rope.cos.size(1) : 0;
  HeadPairs pairs;
  for (std::int64_t pair = 0; pair < head_dim / 2; ++pair) {
    const bool turns = pair < turned, beside = !turns || rope.interleaved;
    pairs.first.push_back(beside ? 2 * pair : pair);
    pairs.second.push_back(beside ? 2 * pair + 1 : pair + turned);
    pairs.angles.push_back(turns ? pair : -1);
  }
  const auto count = static_cast<std::size_t>(rank_pairs(head_dim));
  for (auto* numbers : {&pairs.first, &pairs.second, &pairs.angles}) {
    numbers->resize(count, -1);
  }
  return pairs;
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

const float* numbers(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

at::Tensor moved(const at::Tensor& tensor, at::Device device) {
  return tensor.defined() ? tensor.to(device) : tensor;
}

}  // namespace

std::int64_t rank_pairs(std::int64_t head_dim) {
  for (const std::int64_t pairs : {16, 24, 32, 48}) {
    if (head_dim <= 2 * pairs) {
      return pairs;
    }
  }
  return std::max<std::int64_t>(64, head_dim / 2);
}

RankFactors::RankFactors(const Reconstruction& exact, const ModelConfig& config,
                         const RopeTables& rope, int layer, const LayerWeights& weights,
                         at::Device device)
    : element_(device_element(exact.key.scalar_type())),
      num_kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      key_rank_(exact.key.size(1)),
      value_rank_(exact.value.size(1)),
      value_(exact.value.contiguous().to(device)),
      is_principal_(exact.is_principal),
      key_mean_(moved(exact.key_mean, device)),
      value_mean_(moved(exact.value_mean, device)) {
  set_pairs(rope, layer, device);
  key_ = at::constant_pad_nd(by_pairs(exact.key.view({num_kv_heads_, head_dim_, key_rank_})),
                             {0, round_up(key_rank_, kRankStep) - key_rank_})
             .contiguous()
             .to(device);
  const auto offset_of = [&](const at::Tensor& offset) {
    return offset.defined() ? offset.cpu().to(at::kFloat).contiguous() : offset;
  };
  if (const at::Tensor offset = offset_of(key_offset(weights, exact)); offset.defined()) {
    key_offset_ = by_pairs(offset.view({num_kv_heads_, head_dim_, 1})).contiguous().to(device);
  }
  value_offset_ = moved(offset_of(value_offset(weights, exact)), device);
  if (weights.k_norm.defined() && !is_principal_) {
    KVC_CHECK(!weights.k_norm.bias.defined() && weights.k_norm.weight.size(0) == head_dim_,
              "--device cuda: layer {} norms the keys of all heads together, or by a layer norm, "
              "which latents do not have there; use --device cpu",
              layer);
    const at::Tensor norm = weights.k_norm.weight.cpu().to(at::kFloat).view({1, head_dim_, 1});
    norm_ = by_pairs(norm.expand({num_kv_heads_, head_dim_, 1})).contiguous().to(device);
    norm_epsilon_ = static_cast<float>(weights.k_norm.eps);
  }
}

RankFactors::RankFactors(const LatentGroup& group, const ModelConfig& config,
                         const RopeTables& rope, int layer, at::ScalarType dtype, at::Device device)
    : element_(device_element(dtype)),
      num_kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      key_rank_(group.key_width()),
      value_rank_(group.value_width()),
      is_principal_(true) {
  set_pairs(rope, layer, device);
}

void RankFactors::set_pairs(const RopeTables& rope, int layer, at::Device device) {
  const HeadPairs pairs = pairs_of(head_dim_, rope.rows_of_positions(layer, 1));
  places_ = at::cat({at::tensor(pairs.first, at::kLong), at::tensor(pairs.second, at::kLong)});
  channels_ = places_.to(at::kInt).repeat({num_kv_heads_, 1}).to(device);
  angles_ = at::tensor(pairs.angles, at::kInt).repeat({num_kv_heads_, 1}).to(device);
}

at::Tensor RankFactors::pair_order() const {
  return places_.index_select(0, (places_ >= 0).nonzero().squeeze(1));
}

at::Tensor RankFactors::to_pairs(const at::Tensor& channels) const {
  return channels.view({num_kv_heads_, head_dim_, -1})
      .index_select(1, pair_order().to(channels.device()))
      .view_as(channels);
}

at::Tensor RankFactors::from_pairs(const at::Tensor& rows) const {
  return rows.view({num_kv_heads_, head_dim_, -1})
      .index_select(1, pair_order().argsort().to(rows.device()))
      .view_as(rows);
}

at::Tensor RankFactors::by_pairs(const at::Tensor& rows) const {
  const at::Tensor exists = (places_ >= 0).to(rows.scalar_type()).view({1, -1, 1});
  return rows.index_select(1, places_.clamp_min(0)) * exists;
}

RebuiltKeys RankFactors::keys() const {
  return {.pairs = {.num_pairs = static_cast<int>(places_.size(0) / 2),
                    .channels = channels_.const_data_ptr<std::int32_t>(),
                    .angles = angles_.const_data_ptr<std::int32_t>(),
                    .offset = numbers(key_offset_)},
          .projection = key_.defined() ? key_.const_data_ptr() : nullptr,
          .rank_stride = static_cast<int>(key_.defined() ? key_.size(2) : key_rank_),
          .norm = numbers(norm_),
          .norm_epsilon = norm_epsilon_};
}

ProjectValues RankFactors::values() const {
  return {.projection = value_.defined() ? value_.const_data_ptr() : nullptr,
          .element = element_,
          .rank = static_cast<int>(value_rank_),
          .rank_stride = static_cast<int>(value_rank_),
          .offset = numbers(value_offset_),
          .num_kv_heads = static_cast<int>(num_kv_heads_),
          .head_dim = static_cast<int>(head_dim_)};
}

Reconstruction RankFactors::tensors() const {
  at::Tensor rows = at::zeros({head_dim_}, at::kLong);  // of key_, by channel
  for (std::int64_t row = 0; row < places_.size(0); ++row) {
    const auto channel = places_[row].item<std::int64_t>();
    if (channel >= 0) {
      rows[channel] = row;
    }
  }
  Reconstruction exact{key_.index_select(1, rows.to(key_.device()))
                           .narrow(2, 0, key_rank_)
                           .reshape({num_kv_heads_ * head_dim_, key_rank_}),
                       value_};
  exact.is_principal = is_principal_;
  exact.key_mean = key_mean_;
  exact.value_mean = value_mean_;
  return exact;
}

std::int64_t RankFactors::bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : {key_, value_, channels_, angles_, key_offset_, value_offset_,
                                   norm_, key_mean_, value_mean_}) {
    bytes += bytes_of(tensor);
  }
  return bytes;
}

std::int64_t GpuGroupFactors::bytes() const {
  std::int64_t bytes =
      bytes_of(factors.latent_proj) + bytes_of(factors.encoder) + bytes_of(factors.mean_latent);
  for (const LayerEncoder& encoder : factors.encoders) {
    bytes += bytes_of(encoder.key) + bytes_of(encoder.value);
  }
  for (const RankFactors& layer : merged_layers) {
    bytes += layer.bytes();
  }
  const bool shared = !layers.empty() && !merged_layers.empty() &&
                      layers.front().keys().projection == merged_layers.front().keys().projection;
  for (const RankFactors& layer : layers) {
    bytes += shared ? 0 : layer.bytes();
  }
  return bytes;
}

GpuGroupFactors to_gpu(const GroupFactors& given, const LatentGroup& group,
                       const ModelConfig& config, const RopeTables& rope,
                       const std::vector<LayerWeights>& weights, at::ScalarType dtype,
                       at::Device device) {
  GpuGroupFactors result;
  GroupFactors& factors = result.factors;
  factors.key_rank = given.key_rank;
  factors.value_rank = given.value_rank;
  factors.latent_proj = moved(given.latent_proj, device);
  factors.encoder = moved(given.encoder, device);
  factors.mean_latent = moved(given.mean_latent, device);
  for (const LayerEncoder& encoder : given.encoders) {
    factors.encoders.push_back({encoder.key.to(device), encoder.value.to(device)});
  }
  if (group.basis == LatentBasis::kRequest) {
    for (int layer = group.first_layer; layer < group.first_layer + group.num_layers; ++layer) {
      result.merged_layers.emplace_back(group, config, rope, layer, dtype, device);
    }
    return result;
  }
  const auto of_layers = [&](const std::vector<Reconstruction>& layers) {
    std::vector<RankFactors> ranks;
    for (std::size_t index = 0; index < layers.size(); ++index) {
      const int layer = group.first_layer + static_cast<int>(index);
      ranks.emplace_back(layers[index], config, rope, layer,
                         weights[static_cast<std::size_t>(layer)], device);
    }
    return ranks;
  };
  const bool shared =
      !given.layers.empty() && !given.merged_layers.empty() &&
      given.layers.front().key.data_ptr() == given.merged_layers.front().key.data_ptr();
  result.merged_layers = of_layers(given.merged_layers);
  result.layers = shared ? result.merged_layers : of_layers(given.layers);
  return result;
}

}  // namespace kvc

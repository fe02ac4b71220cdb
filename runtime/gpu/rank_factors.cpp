#include "runtime/gpu/rank_factors.h"

#include <utility>

#include "core/arithmetic.h"
#include "core/error.h"
#include "model/tensor_memory.h"
#include "runtime/attention/cache_segments.h"
#include "runtime/gpu/gpu_cache.h"

namespace kvc {
namespace {

const float* numbers(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

at::Tensor moved(const at::Tensor& tensor, at::Device device) {
  return tensor.defined() ? tensor.to(device) : tensor;
}

}  // namespace

RankFactors::Pairs::Pairs(const PairPlaces& given, at::Device device)
    : places(given),
      channels(given.channels.to(device, at::kInt)),
      angles(given.angles.to(device, at::kInt)) {}

KeyPairs RankFactors::Pairs::device() const {
  return {.num_pairs = static_cast<int>(places.num_pairs()),
          .channels = channels.const_data_ptr<std::int32_t>(),
          .angles = angles.const_data_ptr<std::int32_t>(),
          .offset = numbers(offset)};
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
  const bool has_norm = weights.k_norm.defined() && !is_principal_;
  set_pairs(key_places(config, rope, layer, has_norm ? KeptChannels() : exact.kept), device);
  key_ = at::constant_pad_nd(by_pairs(pairs_, exact.key),
                             {0, round_up(key_rank_, kRankStep) - key_rank_})
             .contiguous()
             .to(device);
  const auto offset_of = [&](const at::Tensor& offset) {
    return offset.defined() ? offset.cpu().to(at::kFloat).contiguous() : offset;
  };
  if (const at::Tensor offset = offset_of(key_offset(weights, exact)); offset.defined()) {
    for (Pairs* pairs : {&pairs_, &stored_}) {
      if (pairs->places.num_pairs() > 0) {
        pairs->offset = by_pairs(*pairs, offset).contiguous().to(device);
      }
    }
  }
  value_offset_ = moved(offset_of(value_offset(weights, exact)), device);
  if (has_norm) {
    KVC_CHECK(!weights.k_norm.bias.defined() && weights.k_norm.weight.size(0) == head_dim_,
              "--device cuda: layer {} normalises the keys of all heads together, or with a layer "
              "norm; latents do not support that on a GPU. Use --device cpu",
              layer);
    const at::Tensor norm = weights.k_norm.weight.cpu().to(at::kFloat);
    norm_ = by_pairs(pairs_, norm.repeat({num_kv_heads_})).contiguous().to(device);
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
  set_pairs(key_places(config, rope, layer, {}), device);
}

void RankFactors::set_pairs(const KeyPlaces& places, at::Device device) {
  pairs_ = Pairs(places.rebuilt, device);
  if (places.num_stored > 0) {
    stored_ = Pairs(places.stored, device);
    num_stored_ = places.num_stored;
    host_columns_ = places.first_columns;
    first_columns_ = host_columns_.to(device, at::kInt);
  }
}

at::Tensor RankFactors::pair_order() const {
  const at::Tensor places = pairs_.places.channels[0];
  return places.index_select(0, (places >= 0).nonzero().squeeze(1));
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

at::Tensor RankFactors::rows_of(const Pairs& pairs) const {
  const at::Tensor& places = pairs.places.channels;
  const at::Tensor first = at::arange(num_kv_heads_, at::kLong).unsqueeze(1) * head_dim_;
  return at::where(places >= 0, places + first, places).flatten();
}

at::Tensor RankFactors::by_pairs(const Pairs& pairs, const at::Tensor& channels) const {
  const at::Tensor rows = rows_of(pairs),
                   by_channel = channels.view({num_kv_heads_ * head_dim_, -1});
  const at::Tensor exists = (rows >= 0).to(channels.scalar_type()).unsqueeze(1);
  return (by_channel.index_select(0, rows.clamp_min(0)) * exists)
      .view({num_kv_heads_, 2 * pairs.places.num_pairs(), -1});
}

RebuiltKeys RankFactors::keys() const {
  return {.pairs = pairs_.device(),
          .projection = key_.defined() ? key_.const_data_ptr() : nullptr,
          .rank_stride = static_cast<int>(key_.defined() ? key_.size(2) : key_rank_),
          .norm = numbers(norm_),
          .norm_epsilon = norm_epsilon_};
}

StoredKeys RankFactors::stored() const {
  if (num_stored_ == 0) {
    return {};
  }
  return {.pairs = stored_.device(),
          .num_stored = static_cast<int>(num_stored_),
          .first_column = first_columns_.const_data_ptr<std::int32_t>()};
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
  const at::Tensor rows = rows_of(pairs_), there = (rows >= 0).nonzero().squeeze(1);
  at::Tensor key = at::zeros({num_kv_heads_ * head_dim_, key_rank_}, key_.options());
  key.index_copy_(
      0, rows.index_select(0, there).to(key.device()),
      key_.flatten(0, 1).index_select(0, there.to(key.device())).narrow(1, 0, key_rank_));
  for (std::int64_t head = 0; head < num_kv_heads_ && num_stored_ > 0; ++head) {
    const at::Tensor channels = stored_.places.channels[head] + head * head_dim_;
    const std::int64_t first = host_columns_[head].item<std::int64_t>();
    for (std::int64_t second = 0; second < 2; ++second) {
      const at::Tensor own = channels.narrow(0, second * stored_.places.num_pairs(), num_stored_);
      at::Tensor columns = key.narrow(1, first + second * num_stored_, num_stored_);
      columns.index_copy_(0, own.to(key.device()), at::eye(num_stored_, key.options()));
    }
  }
  Reconstruction exact{key, value_};
  exact.is_principal = is_principal_;
  exact.key_mean = key_mean_;
  exact.value_mean = value_mean_;
  return exact;
}

std::int64_t RankFactors::bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : {key_, value_, pairs_.channels, pairs_.angles, pairs_.offset,
                                   stored_.channels, stored_.angles, stored_.offset, first_columns_,
                                   value_offset_, norm_, key_mean_, value_mean_}) {
    bytes += tensor_bytes(tensor);
  }
  return bytes;
}

std::int64_t GpuGroupFactors::bytes() const {
  std::int64_t bytes = tensor_bytes(factors.latent_proj) + tensor_bytes(factors.encoder) +
                       tensor_bytes(factors.mean_latent);
  for (const LayerEncoder& encoder : factors.encoders) {
    bytes += tensor_bytes(encoder.key) + tensor_bytes(encoder.value);
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

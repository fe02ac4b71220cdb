#include "export/mla/mla_layer.h"

#include <algorithm>
#include <cmath>

#include "export/mla/rotary_slots.h"
#include "model/eigen/principal_basis.h"

namespace kvc {
namespace {

// The constant channel relative to the root mean square of the latent's length: a latent of twenty times that length
// changes the norm by less than a thousandth, and float16 still holds the normed channels.
constexpr double kHeadroom = 512;

// The latent of position-free keys and values y: latent = encoder * (y - mean), y ~ decoder * latent + mean.
struct Latent {
  at::Tensor encoder;  // [rank, 2 * kv_dim], from whole keys
  at::Tensor decoder;  // [2 * kv_dim, rank]
  double loss = 0;     // squared error in the metric
};

// The metric of position-free keys, then of values, block by block. [2 * kv_dim, 2 * kv_dim]
at::Tensor latent_metric(const MlaStatistics& statistics, const ModelConfig& config,
                         const RotarySlots& slots) {
  const std::int64_t group = config.num_heads / config.num_kv_heads;
  const at::Tensor scale = slots.plain_query.abs()
                               .square()
                               .unflatten(0, {-1, group})
                               .mean(1)
                               .sqrt()
                               .repeat({1, 2});  // [num_kv_heads, head_dim]
  std::vector<at::Tensor> blocks;
  for (std::int64_t head = 0; head < config.num_kv_heads; ++head) {
    blocks.push_back(statistics.query_metric[head] * scale[head].outer(scale[head]));
  }
  for (const at::Tensor& values : statistics.value_metric.unbind(0)) {
    blocks.push_back(values);
  }
  return damped_cache_metric(at::block_diag(blocks), config.kv_dim());
}

Latent find_latent(const MlaStatistics& statistics, const ModelConfig& config,
                   const RotarySlots& slots, std::int64_t kv_lora_rank) {
  const std::int64_t kv_dim = config.kv_dim();
  const at::Tensor identity = at::eye(kv_dim, at::kDouble);
  const at::Tensor rest =  // keys without what the slots hold, and values
      at::block_diag({identity - at::mm(slots.synthesis, slots.analysis), identity});
  const at::Tensor covariance = at::mm(rest, at::mm(statistics.covariance, rest.t()));
  const std::int64_t rank = std::min(kv_lora_rank - 1, 2 * kv_dim);  // one channel is constant
  const PrincipalBasis basis = principal_basis((covariance + covariance.t()) / 2,
                                               latent_metric(statistics, config, slots), rank);
  return {.encoder = at::mm(basis.encoder, rest),
          .decoder = basis.decoder,
          .loss = basis.eigenvalues.slice(0, rank).sum().item<double>()};
}

double rounded(double value, at::ScalarType stored) {
  return at::scalar_tensor(value, at::kDouble).to(stored).item<double>();
}

// The layout divides a latent by its root mean square and multiplies it with weights. A channel with a large constant makes
// the root mean square constant / sqrt(rank), whatever the others hold: these become x * norm * sqrt(rank) / constant, and
// the constant channel sqrt(rank) * constant_norm.
struct NormConstants {
  double constant = 1;             // of the constant channel
  double norm = 1;                 // weight of the other channels, a power of two
  double constant_norm = 1;        // weight of the constant channel
  double loss = 1;                 // x over what it becomes
  double constant_after_norm = 1;  // what the constant channel becomes
};

NormConstants norm_constants(double mean_square, std::int64_t rank, at::ScalarType stored) {
  const double root = std::sqrt(static_cast<double>(rank));
  const double length = mean_square > 0 ? kHeadroom * std::sqrt(mean_square) : kHeadroom;
  NormConstants constants;
  constants.norm = std::exp2(std::round(std::log2(length / root)));
  constants.constant = rounded(constants.norm * root, stored);
  constants.constant_norm = rounded(1 / root, stored);
  constants.loss = constants.constant / (constants.norm * root);
  constants.constant_after_norm = root * constants.constant_norm;
  return constants;
}

// Rows of every query head: `rows` [kv_dim, n] of its KV head. [num_heads, head_dim, n]
at::Tensor for_query_heads(const at::Tensor& rows, const ModelConfig& config) {
  return rows.unflatten(0, {config.num_kv_heads, config.head_dim})
      .repeat_interleave(config.num_heads / config.num_kv_heads, 0);
}

void set_latent(const Latent& latent, const GroupedWeights& weights,
                const MlaStatistics& statistics, const ModelConfig& config,
                const RotarySlots& slots, const MlaShape& shape, at::ScalarType stored,
                MlaLayer& layer) {
  const std::int64_t rank = latent.encoder.size(0), kv_dim = config.kv_dim();
  const std::int64_t last = shape.kv_lora_rank - 1;
  const at::Tensor seen = at::mm(latent.encoder, at::mm(statistics.covariance, latent.encoder.t()));
  const NormConstants constants =
      norm_constants(seen.trace().item<double>(), shape.kv_lora_rank, stored);

  layer.kv_a_proj = at::zeros({shape.width(), config.hidden_size}, at::kDouble);
  layer.kv_a_proj.narrow(0, 0, rank)
      .copy_(at::mm(latent.encoder, at::cat({weights.key, weights.value})));
  layer.kv_a_proj.narrow(0, shape.kv_lora_rank, shape.rope.rotary_dim)
      .copy_(at::mm(slots.analysis, weights.key));
  layer.kv_a_bias = at::zeros({shape.width()}, at::kDouble);
  layer.kv_a_bias.narrow(0, 0, rank).copy_(-at::mv(latent.encoder, statistics.mean));
  layer.kv_a_bias[last] = constants.constant;
  layer.kv_a_norm = at::full({shape.kv_lora_rank}, constants.norm, at::kDouble);
  layer.kv_a_norm[last] = constants.constant_norm;

  // A mean of position-free keys adds the same to all scores of a query, so that they need none.
  at::Tensor decoder = at::zeros({2 * kv_dim, shape.kv_lora_rank}, at::kDouble);
  decoder.narrow(1, 0, rank).copy_(latent.decoder * constants.loss);
  decoder.select(1, last)
      .narrow(0, kv_dim, kv_dim)
      .copy_(statistics.mean.narrow(0, kv_dim, kv_dim) / constants.constant_after_norm);
  layer.kv_b_proj = at::cat({for_query_heads(decoder.narrow(0, 0, kv_dim), config),
                             for_query_heads(decoder.narrow(0, kv_dim, kv_dim), config)},
                            1)
                        .flatten(0, 1);
}

// Queries without position, then those of the slots, scaled to the layout's own 1 / sqrt(channels).
at::Tensor queries(const at::Tensor& weight, const ModelConfig& config, const RotarySlots& slots) {
  const at::Tensor query =
      as_complex_pairs(weight.unflatten(0, {config.num_heads, config.head_dim}), 1);
  const at::Tensor plain = query * slots.plain_query.unsqueeze(2);
  const auto num_slots = static_cast<std::int64_t>(slots.pair.size());
  const at::Tensor source = at::tensor(slots.pair, at::kLong).clamp_min(0);  // unused ones are zero
  const at::Tensor rotary = query.index_select(1, source) * slots.slot_query.unsqueeze(2);
  const at::Tensor interleaved =
      at::view_as_real(rotary).permute({0, 1, 3, 2}).reshape({config.num_heads, 2 * num_slots, -1});
  const double channels = static_cast<double>(config.head_dim + 2 * num_slots);
  return at::cat({at::real(plain), at::imag(plain), interleaved}, 1)
      .flatten(0, 1)
      .mul(config.attention_scale * std::sqrt(channels));
}

}  // namespace

MlaLayer fit_mla_layer(const GroupedWeights& weights, const MlaStatistics& statistics,
                       const ModelConfig& config, const MlaShape& shape, at::ScalarType stored) {
  const RotarySlots slots = choose_slots(statistics, config, shape.rope);
  const Latent latent = find_latent(statistics, config, slots, shape.kv_lora_rank);
  MlaLayer layer;
  layer.q_proj = queries(weights.query, config, slots);
  set_latent(latent, weights, statistics, config, slots, shape, stored, layer);
  return layer;
}

double mla_loss(const MlaStatistics& statistics, const ModelConfig& config, const MlaShape& shape) {
  const RotarySlots slots = choose_slots(statistics, config, shape.rope);
  return slots.loss + find_latent(statistics, config, slots, shape.kv_lora_rank).loss;
}

}  // namespace kvc

#include "export/mla/rotary_slots.h"

#include <algorithm>

#include "core/statistics_file.h"
#include "model/rope.h"

namespace kvc {
namespace {

constexpr double kLeastWeight = 1e-6;  // of a head's errors, relative to the mean of all heads
// Share of all distances of the context alike in the distances that attention looks back. The weights of errors are
// nearly zero where attention is, but a wrong position may draw it there.
constexpr double kFarShare = 0.25;

// Components of every frequency across heads. Axis "component" is descending in energy.
struct Components {
  at::Tensor energy;     // [pairs, component]
  at::Tensor share;      // [pairs, component, num_kv_heads] of a component's energy by head
  at::Tensor analysis;   // [pairs, component, num_kv_heads] complex: component = analysis * key
  at::Tensor synthesis;  // the same: key = conj-free sum over components of synthesis * component
};

// E z_a conj(z_b) of the heads' complex keys of each frequency. [pairs, num_kv_heads, num_kv_heads]
at::Tensor head_moments(const MlaStatistics& statistics, const ModelConfig& config) {
  const std::int64_t heads = config.num_kv_heads, pairs = config.head_dim / 2;
  const at::Tensor mean = statistics.mean.narrow(0, 0, config.kv_dim());
  const at::Tensor moments =
      statistics.covariance.narrow(0, 0, config.kv_dim()).narrow(1, 0, config.kv_dim()) +
      mean.outer(mean);
  const at::Tensor parts = moments.reshape({heads, 2, pairs, heads, 2, pairs})
                               .diagonal(0, 2, 5);  // [heads, 2, heads, 2, pairs]
  const auto part = [&](int a, int b) { return parts.select(1, a).select(2, b); };
  return at::complex(part(0, 0) + part(1, 1), part(1, 0) - part(0, 1)).permute({2, 0, 1});
}

// Root of what attention makes of a unit error in a head's pair, at any position: rotations change no pair's length.
// [pairs, num_kv_heads]
at::Tensor pair_weights(const MlaStatistics& statistics, const ModelConfig& config) {
  const at::Tensor diagonal = statistics.query_metric.diagonal(0, 1, 2);  // [heads, head_dim]
  const at::Tensor energy =
      diagonal.unflatten(1, {2, config.head_dim / 2}).mean(1).t();  // [pairs, heads]
  const double mean = energy.mean().item<double>();
  return energy.clamp_min(kLeastWeight * (mean > 0 ? mean : 1)).sqrt();
}

Components find_components(const MlaStatistics& statistics, const ModelConfig& config) {
  const at::Tensor weights = pair_weights(statistics, config);
  const at::Tensor seen =
      head_moments(statistics, config) * weights.unsqueeze(2) * weights.unsqueeze(1);
  const auto [values, vectors] = at::linalg_eigh(seen);           // ascending
  const at::Tensor directions = vectors.flip(2).transpose(1, 2);  // [pairs, component, heads]
  return {.energy = values.flip(1).clamp_min(0),
          .share = directions.abs().square(),
          .analysis = directions.conj().resolve_conj() * weights.unsqueeze(1),
          .synthesis = directions / weights.unsqueeze(1)};
}

// How much errors count by distance, of one query head. [kNumDistances], sums to 1
at::Tensor distance_shares(const at::Tensor& weight, const ModelConfig& config) {
  const std::int64_t context = std::min(kNumDistances, config.max_position_embeddings);
  at::Tensor far = at::zeros_like(weight);
  far.narrow(0, 0, context).fill_(1 / static_cast<double>(context));
  const double total = weight.sum().item<double>();
  return total > 0 ? (1 - kFarShare) * weight / total + kFarShare * far : far;
}

// rho of every query head and frequency; f = 0 first, then the slots'. [num_heads, pairs, 1 + num_slots] complex
at::Tensor mean_rotations(const MlaStatistics& statistics, const ModelConfig& config,
                          const RopeConfig& rotary) {
  const at::Tensor theta = rope_inverse_frequencies(config.ropes.front()).to(at::kDouble);
  const at::Tensor slots = rope_inverse_frequencies(rotary).to(at::kDouble);
  const at::Tensor distance = at::arange(kNumDistances, at::kDouble);
  const auto turns = [&](const at::Tensor& frequencies, double sign) {
    const at::Tensor angles = distance.outer(frequencies) * sign;
    return at::complex(angles.cos(), angles.sin());
  };
  const at::Tensor keys = turns(theta, 1).t();
  const at::Tensor offered = turns(at::cat({at::zeros({1}, at::kDouble), slots}), -1);
  std::vector<at::Tensor> heads;
  for (const at::Tensor& weight : statistics.distance_weight.unbind(0)) {
    heads.push_back(at::mm(keys * distance_shares(weight, config), offered));
  }
  return at::stack(heads);
}

// |rho|^2 of the query heads of each KV head, weighted like them. [num_kv_heads, pairs, 1 + num_slots]
at::Tensor retained(const at::Tensor& rotations, const MlaStatistics& statistics,
                    const ModelConfig& config) {
  const std::int64_t group = config.num_heads / config.num_kv_heads;
  const at::Tensor total = statistics.distance_weight.sum(1).unflatten(0, {-1, group});
  const at::Tensor sum = total.sum(1, true);
  const at::Tensor share = at::where(sum > 0, total / sum, at::ones_like(total) / group);
  return (rotations.abs().square().unflatten(0, {-1, group}) * share.unsqueeze(2).unsqueeze(3))
      .sum(1);
}

struct Choice {
  std::int64_t pair = 0, component = 0, slot = 0;
};

// Gives slots to components, the largest gain first. gain [pairs, component, num_slots]
std::vector<Choice> assign(at::Tensor gain) {
  std::vector<Choice> choices;
  const std::int64_t components = gain.size(1), slots = gain.size(2);
  at::Tensor left = gain.reshape({-1, slots}).clone();
  for (std::int64_t i = 0; i < std::min(left.size(0), slots); ++i) {
    const auto best = left.argmax().item<std::int64_t>();
    const std::int64_t row = best / slots, slot = best % slots;
    if (!(left[row][slot].item<double>() > 0)) {
      break;
    }
    choices.push_back({row / components, row % components, slot});
    left.select(0, row).fill_(-1);
    left.select(1, slot).fill_(-1);
  }
  return choices;
}

// The real 2x2 matrix of a complex factor, in rows `row`, `row + 1` (columns likewise apart by `stride`).
void set_factor(at::Tensor& matrix, std::int64_t row, std::int64_t row_stride, std::int64_t column,
                std::int64_t column_stride, c10::complex<double> factor) {
  auto at = matrix.accessor<double, 2>();
  at[row][column] = at[row + row_stride][column + column_stride] = factor.real();
  at[row + row_stride][column] = factor.imag();
  at[row][column + column_stride] = -factor.imag();
}

}  // namespace

at::Tensor as_complex_pairs(const at::Tensor& x, std::int64_t dim) {
  const std::int64_t pairs = x.size(dim) / 2;
  return at::complex(x.narrow(dim, 0, pairs).contiguous(),
                     x.narrow(dim, pairs, pairs).contiguous());
}

RotarySlots choose_slots(const MlaStatistics& statistics, const ModelConfig& config,
                         const RopeConfig& rotary) {
  const std::int64_t num_slots = rotary.rotary_dim / 2, pairs = config.head_dim / 2;
  const std::int64_t group = config.num_heads / config.num_kv_heads;
  const Components components = find_components(statistics, config);
  const at::Tensor rotations = mean_rotations(statistics, config, rotary);
  const at::Tensor kept =
      at::einsum("pmh,hps->pms", {components.share, retained(rotations, statistics, config)});
  const at::Tensor plain = components.energy * (1 - kept.select(2, 0));
  const at::Tensor gain =
      components.energy.unsqueeze(2) * (kept.narrow(2, 1, num_slots) - kept.narrow(2, 0, 1));

  RotarySlots slots;
  slots.pair.assign(static_cast<std::size_t>(num_slots), -1);
  slots.analysis = at::zeros({2 * num_slots, config.kv_dim()}, at::kDouble);
  slots.synthesis = at::zeros({config.kv_dim(), 2 * num_slots}, at::kDouble);
  slots.slot_query = at::zeros({config.num_heads, num_slots}, at::kComplexDouble);
  slots.plain_query = rotations.select(2, 0).contiguous();
  slots.loss = plain.sum().item<double>();
  const auto analysis = components.analysis.contiguous(),
             synthesis = components.synthesis.contiguous();
  const auto encode = analysis.accessor<c10::complex<double>, 3>();
  const auto decode = synthesis.accessor<c10::complex<double>, 3>();
  const auto turned = rotations.accessor<c10::complex<double>, 3>();
  auto query = slots.slot_query.accessor<c10::complex<double>, 2>();
  for (const auto& [pair, component, slot] : assign(gain)) {
    slots.pair[static_cast<std::size_t>(slot)] = pair;
    slots.loss -= gain[pair][component][slot].item<double>();
    for (std::int64_t head = 0; head < config.num_kv_heads; ++head) {
      const std::int64_t channel = head * config.head_dim + pair;
      set_factor(slots.analysis, 2 * slot, 1, channel, pairs, encode[pair][component][head]);
      set_factor(slots.synthesis, channel, pairs, 2 * slot, 1, decode[pair][component][head]);
    }
    for (std::int64_t head = 0; head < config.num_heads; ++head) {
      query[head][slot] =
          std::conj(decode[pair][component][head / group]) * turned[head][pair][1 + slot];
    }
  }
  return slots;
}

}  // namespace kvc

#include "model/moe.h"

#include <tuple>
#include <vector>

#include "model/linear.h"

namespace kvc {
namespace {

at::Tensor gated(const at::Tensor& gate_up, const ActivationFunction& activation) {
  const std::vector<at::Tensor> halves = gate_up.chunk(2, -1);
  return activation(halves[0]) * halves[1];
}

// Probabilities of experts outside the groups with the best expert become 0. [num_tokens, num_experts]
at::Tensor keep_best_groups(const MoeConfig& config, const at::Tensor& probabilities) {
  const at::Tensor groups = probabilities.unflatten(-1, {config.num_groups, -1});
  const at::Tensor best =
      std::get<1>(std::get<0>(groups.max(-1)).topk(config.groups_per_token, /*dim=*/-1));
  const at::Tensor kept = at::zeros({probabilities.size(0), config.num_groups},
                                    probabilities.options().dtype(at::kBool))
                              .scatter(/*dim=*/1, best, /*value=*/true);
  return groups.masked_fill(kept.logical_not().unsqueeze(-1), 0).flatten(1);
}

at::Tensor run_shared_experts(const MoeWeights& weights, const at::Tensor& x,
                              const ActivationFunction& activation) {
  const at::Tensor output = weights.shared_down(gated(weights.shared_gate_up(x), activation));
  return weights.shared_gate.defined()
             ? at::sigmoid(float_linear(x, weights.shared_gate, {})) * output
             : output;
}

// Tokens are sorted by expert, so that each expert's lie together; their outputs are sorted back and
// summed in a fixed order.
at::Tensor run_routed_experts(const MoeWeights& weights, const Routing& routing,
                              const at::Tensor& x, const ActivationFunction& activation) {
  const std::int64_t experts_per_token = routing.experts.size(1);
  const at::Tensor flat = routing.experts.flatten();
  const at::Tensor order = flat.argsort(/*stable=*/true);  // [num_tokens * experts_per_token]
  const at::Tensor counts = at::bincount(flat, {}, weights.router.size(0)).cpu();
  const at::Tensor rows = x.index_select(0, order.div(experts_per_token, "floor"));
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (std::int64_t expert = 0; expert < counts.size(0); ++expert) {
    const std::int64_t count = counts.const_data_ptr<std::int64_t>()[expert];
    if (count > 0) {
      const at::Tensor inner =
          gated(weights.gate_up.stacked(expert)(rows.narrow(0, first, count)), activation);
      outputs.push_back(weights.down.stacked(expert)(inner));
    }
    first += count;
  }
  const at::Tensor sorted_back = at::cat(outputs).index_select(0, order.argsort());
  return (sorted_back.view({x.size(0), experts_per_token, -1}) * routing.weights.unsqueeze(-1))
      .sum(1)
      .to(x.scalar_type());
}

}  // namespace

Routing route(const MoeConfig& config, const at::Tensor& router, const at::Tensor& x) {
  const at::Tensor logits = config.float_router
                                ? float_linear(x.to(at::kFloat), router.to(at::kFloat), {})
                                : float_linear(x, router, {});
  at::Tensor probabilities = logits.softmax(-1, at::kFloat);
  if (config.groups_per_token < config.num_groups) {
    probabilities = keep_best_groups(config, probabilities);
  }
  auto [weights, experts] = probabilities.topk(config.experts_per_token, /*dim=*/-1);
  if (config.normalize) {
    weights = weights / weights.sum(-1, /*keepdim=*/true);
  }
  return {experts, config.routed_scale == 1 ? weights : weights * config.routed_scale};
}

at::Tensor run_experts(const MoeConfig& config, const MoeWeights& weights, const at::Tensor& x,
                       const ActivationFunction& activation) {
  const Routing routing = route(config, weights.router, x);
  const at::Tensor routed = run_routed_experts(weights, routing, x, activation);
  return config.shared_size == 0 ? routed : routed + run_shared_experts(weights, x, activation);
}

}  // namespace kvc

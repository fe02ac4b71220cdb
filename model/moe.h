// Mixture of experts: a router sends every token through a few of many MLPs.
#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "model/linear.h"
#include "model/moe_config.h"

namespace kvc {

struct MoeWeights {
  at::Tensor router;  // [num_experts, hidden_size]
  Linear gate_up;     // [num_experts, 2 * expert_size, hidden_size]: rows gate | up; no bias
  Linear down;        // [num_experts, hidden_size, expert_size]; no bias
  Linear shared_gate_up, shared_down;  // rows gate | up of shared_size each; or undefined
  at::Tensor shared_gate;              // [1, hidden_size], or undefined

  bool defined() const { return router.defined(); }
};

struct Routing {
  at::Tensor experts;  // [num_tokens, experts_per_token] int64
  at::Tensor weights;  // the same shape, float32
};

using ActivationFunction = std::function<at::Tensor(const at::Tensor&)>;

// x: [num_tokens, hidden_size], here and below.
Routing route(const MoeConfig& config, const at::Tensor& router, const at::Tensor& x);
// The MLP of a layer with experts. Differentiable with respect to x. One product per chosen expert,
// over all tokens that chose it.
at::Tensor run_experts(const MoeConfig& config, const MoeWeights& weights, const at::Tensor& x,
                       const ActivationFunction& activation);

}  // namespace kvc

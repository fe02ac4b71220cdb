#include "model/decoder.h"
#include "model/float_linear.h"
#include "model/fused_ops.h"

namespace kvc {
namespace {

// Queries, keys and values of a layer from its normed input; keys and values undefined where a plan
// replaced their projections.
AttentionInput project(const ModelConfig& config, const LayerWeights& weights,
                       const at::Tensor& hidden) {
  AttentionInput input{weights, hidden, {}, {}, {}};
  const auto heads = [&](const at::Tensor& x) { return x.unflatten(-1, {-1, config.head_dim}); };
  if (weights.qkv_proj.weight.defined()) {
    const at::Tensor projected = heads(weights.qkv_proj(hidden));
    input.query = projected.narrow(1, 0, config.num_heads);
    input.key = projected.narrow(1, config.num_heads, config.num_kv_heads);
    input.value = projected.narrow(1, config.num_heads + config.num_kv_heads, config.num_kv_heads);
  } else {
    input.query = heads(weights.q_proj(hidden));
    if (weights.k_proj.weight.defined()) {
      input.key = heads(weights.k_proj(hidden));
    }
    if (weights.v_proj.weight.defined()) {
      input.value = heads(weights.v_proj(hidden));
    }
  }
  if (weights.q_norm.defined()) {
    input.query = rms_norm(input.query, weights.q_norm, config.rms_norm_eps);
  }
  return input;
}

at::Tensor feed_forward(const LayerWeights& weights, const at::Tensor& x) {
  if (weights.gate_up_proj.weight.defined()) {
    const std::vector<at::Tensor> gate_up = weights.gate_up_proj(x).chunk(2, -1);
    return weights.down_proj(at::silu(gate_up[0]) * gate_up[1]);
  }
  return weights.down_proj(at::silu(weights.gate_proj(x)) * weights.up_proj(x));
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (can_fuse(x) && can_fuse(weight) && weight.scalar_type() == x.scalar_type()) {
    return fused_rms_norm(x, weight, eps);
  }
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = wide.square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  return weight * (wide * scale).to(x.scalar_type());
}

at::Tensor run_layer(const ModelConfig& config, const LayerWeights& weights, int layer,
                     const at::Tensor& hidden_states, const TokenBatch& batch,
                     Attention& attention) {
  const at::Tensor normed = rms_norm(hidden_states, weights.input_layernorm, config.rms_norm_eps);
  const at::Tensor attended = attention.attend(layer, project(config, weights, normed), batch);
  const at::Tensor middle = hidden_states + weights.o_proj(attended);
  return middle + feed_forward(weights, rms_norm(middle, weights.post_attention_layernorm,
                                                 config.rms_norm_eps));
}

at::Tensor compute_logits(const ModelConfig& config, const ModelWeights& weights,
                          const at::Tensor& hidden_states) {
  const at::Tensor normed = rms_norm(hidden_states, weights.norm, config.rms_norm_eps);
  return float_linear(normed, weights.lm_head, {}).to(at::kFloat);
}

}  // namespace kvc

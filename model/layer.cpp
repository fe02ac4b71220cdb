#include "model/decoder.h"
#include "model/fused_ops.h"

namespace kvc {
namespace {

// Queries, keys and values of a layer from its normed input; keys and values undefined where a plan
// replaced their projections.
AttentionInput project(const ModelConfig& config, const LayerWeights& weights,
                       const at::Tensor& hidden) {
  AttentionInput input{weights, hidden, {}, {}, {}};
  if (config.mla) {
    const MlaProjections projections = project_mla(*config.mla, weights.mla, hidden);
    input.query = projections.query;
    input.latent = projections.latent;
    input.rotary_key = projections.rotary_key;
    return input;
  }
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
  input.query = weights.q_norm.over_heads(input.query);
  return input;
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kSilu:
      break;
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
  }
  return at::silu(x);
}

at::Tensor gated(Activation activation, const at::Tensor& gate, const at::Tensor& up) {
  return activation == Activation::kSilu && can_fuse_gated_silu(gate, up)
             ? fused_gated_silu(gate, up)
             : activate(activation, gate) * up;
}

// What down_proj takes. Apart, so that what it is computed from is gone before down_proj takes memory.
at::Tensor feed_forward_units(const ModelConfig& config, const LayerWeights& weights,
                              const at::Tensor& x) {
  if (const Linear& both = weights.gate_up_proj; both.weight.defined()) {
    if (x.is_cuda()) {  // activations are far faster there where the rows of each lie together
      const std::int64_t size = both.weight.size(0) / 2;
      return gated(config.activation, both.rows(0, size)(x), both.rows(size, size)(x));
    }
    const std::vector<at::Tensor> gate_up = both(x).chunk(2, -1);
    return gated(config.activation, gate_up[0], gate_up[1]);
  }
  if (!weights.gate_proj.weight.defined()) {
    return activate(config.activation, weights.up_proj(x));
  }
  return gated(config.activation, weights.gate_proj(x), weights.up_proj(x));
}

at::Tensor feed_forward(const ModelConfig& config, const LayerWeights& weights,
                        const at::Tensor& x) {
  if (weights.experts.defined()) {
    return run_experts(*config.moe, weights.experts, x,
                       [&](const at::Tensor& gate) { return activate(config.activation, gate); });
  }
  return weights.down_proj(feed_forward_units(config, weights, x));
}

at::Tensor add(const ModelConfig& config, const at::Tensor& residual, const at::Tensor& x) {
  return config.residual_scale == 1 ? residual + x : residual + x * config.residual_scale;
}

}  // namespace

at::Tensor run_layer(const ModelConfig& config, const LayerWeights& weights, int layer,
                     const at::Tensor& hidden_states, const TokenBatch& batch,
                     Attention& attention) {
  const at::Tensor normed = weights.input_norm(hidden_states);
  const at::Tensor attended = attention.attend(layer, project(config, weights, normed), batch);
  const std::optional<at::Tensor> rows = attention.rows_to_go_on();
  const at::Tensor residual = rows ? hidden_states.index_select(0, *rows) : hidden_states;
  const at::Tensor middle =
      add(config, residual, weights.attention_output_norm(weights.o_proj(attended)));
  const at::Tensor output = feed_forward(config, weights, weights.mlp_norm(middle));
  return add(config, middle, weights.mlp_output_norm(output));
}

at::Tensor compute_logits(const ModelConfig& config, const ModelWeights& weights,
                          const at::Tensor& hidden_states) {
  at::Tensor logits = weights.lm_head(weights.norm(hidden_states)).to(at::kFloat);
  if (config.logit_scale != 1) {
    logits = logits * config.logit_scale;
  }
  if (config.logit_softcap != 0) {
    logits = (logits / config.logit_softcap).tanh() * config.logit_softcap;
  }
  return logits;
}

}  // namespace kvc

#include "model/weights.h"

namespace kvc {
namespace {

void move(at::Tensor& tensor, at::Device device) {
  if (tensor.defined()) {
    tensor = tensor.to(device);
  }
}

void move(Linear& linear, at::Device device) {
  move(linear.weight, device);
  move(linear.bias, device);
  move(linear.scales, device);
}

void move(Norm& norm, at::Device device) {
  move(norm.weight, device);
  move(norm.bias, device);
}

template <class... Parts>
void move_all(at::Device device, Parts&... parts) {
  (move(parts, device), ...);
}

}  // namespace

LayerWeights to_device(LayerWeights weights, at::Device device) {
  move_all(device, weights.input_norm, weights.q_proj, weights.k_proj, weights.v_proj,
           weights.o_proj, weights.q_norm, weights.k_norm, weights.attention_output_norm,
           weights.mlp_norm, weights.gate_proj, weights.up_proj, weights.down_proj,
           weights.mlp_output_norm, weights.qkv_proj, weights.gate_up_proj);
  MlaWeights& mla = weights.mla;
  move_all(device, mla.q_a_proj, mla.q_a_norm, mla.q_proj, mla.kv_a_proj, mla.kv_a_norm,
           mla.kv_b_proj);
  MoeWeights& experts = weights.experts;
  move_all(device, experts.router, experts.gate_up, experts.down, experts.shared_gate_up,
           experts.shared_down, experts.shared_gate);
  return weights;
}

ModelWeights to_device(ModelWeights weights, at::Device device) {
  move_all(device, weights.embed_tokens, weights.norm, weights.lm_head);
  return weights;
}

}  // namespace kvc

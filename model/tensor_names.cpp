#include "model/tensor_names.h"

namespace kvc {

std::string layer_prefix(int layer) { return "model.layers." + std::to_string(layer) + "."; }

std::vector<NamedShape> layer_tensors(const ModelConfig& config, int layer) {
  const std::string prefix = layer_prefix(layer);
  std::vector<NamedShape> tensors;
  const auto norm = [&](const char* name, std::int64_t size) {
    tensors.push_back({prefix + name + ".weight", {size}});
  };
  const auto linear = [&](const char* name, std::int64_t out, std::int64_t in, bool bias) {
    tensors.push_back({prefix + name + ".weight", {out, in}});
    if (bias) {
      tensors.push_back({prefix + name + ".bias", {out}});
    }
  };
  const std::int64_t hidden_size = config.hidden_size;
  norm("input_layernorm", hidden_size);
  linear("self_attn.q_proj", config.q_dim(), hidden_size, config.attention_bias);
  linear("self_attn.k_proj", config.kv_dim(), hidden_size, config.attention_bias);
  linear("self_attn.v_proj", config.kv_dim(), hidden_size, config.attention_bias);
  linear("self_attn.o_proj", hidden_size, config.q_dim(), config.output_bias);
  if (config.arch->qk_norm) {
    norm("self_attn.q_norm", config.head_dim);
    norm("self_attn.k_norm", config.head_dim);
  }
  norm("post_attention_layernorm", hidden_size);
  linear("mlp.gate_proj", config.intermediate_size, hidden_size, config.mlp_bias);
  linear("mlp.up_proj", config.intermediate_size, hidden_size, config.mlp_bias);
  linear("mlp.down_proj", hidden_size, config.intermediate_size, config.mlp_bias);
  return tensors;
}

std::vector<NamedShape> model_tensors(const ModelConfig& config) {
  std::vector<NamedShape> tensors;
  tensors.push_back({"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (NamedShape& tensor : layer_tensors(config, layer)) {
      tensors.push_back(std::move(tensor));
    }
  }
  tensors.push_back({"model.norm.weight", {config.hidden_size}});
  if (!config.tied_embeddings) {
    tensors.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}});
  }
  return tensors;
}

}  // namespace kvc

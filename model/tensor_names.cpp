#include "model/tensor_names.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace kvc {
namespace {

// "a.b." of "a.b.c" and of "a.b.c.".
std::string_view parent_of(std::string_view name) {
  name.remove_suffix(name.ends_with('.') ? 1 : 0);
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot + 1);
}

// Block `index` of consecutive row blocks of these sizes in one tensor.
ProjectionRows block(std::string tensor, const std::vector<std::int64_t>& sizes,
                     std::size_t index) {
  ProjectionRows rows{.tensor = std::move(tensor), .num_rows = sizes[index]};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    rows.tensor_rows += sizes[i];
    rows.first_row += i < index ? sizes[i] : 0;
  }
  return rows;
}

ProjectionRows attention_rows(const ModelConfig& config, int layer, std::size_t index) {
  constexpr const char* kNames[] = {"q_proj", "k_proj", "v_proj"};
  const std::vector<std::int64_t> sizes = {config.q_dim(), config.kv_dim(), config.kv_dim()};
  const std::string prefix = layer_prefix(config, layer) + "self_attn.";
  return config.arch->fused_projections
             ? block(prefix + "qkv_proj.weight", sizes, index)
             : block(prefix + kNames[index] + ".weight", {sizes[index]}, 0);
}

ProjectionRows mlp_rows(const ModelConfig& config, int layer, std::size_t index) {
  const std::int64_t size = config.intermediate_size;
  const std::string prefix = layer_prefix(config, layer) + "mlp.";
  if (config.arch->fused_projections) {
    return block(prefix + "gate_up_proj.weight", {size, size}, index);
  }
  const char* up = config.arch->gated_mlp ? "up_proj" : "c_fc";
  return block(prefix + (index == 0 ? "gate_proj" : up) + ".weight", {size}, 0);
}

// Collects the tensors of a layer.
class LayerTensors {
 public:
  LayerTensors(const ModelConfig& config, int layer)
      : config_(config), prefix_(layer_prefix(config, layer)) {}

  void norm(std::string_view name, std::int64_t size) {
    if (!name.empty()) {
      const std::string full = prefix_ + std::string(name);
      add(full + ".weight", {size});
      if (config_.arch->norm == NormKind::kLayer) {
        add(full + ".bias", {size});
      }
    }
  }
  void linear(std::string_view name, std::int64_t out, std::int64_t in, bool bias) {
    add(prefix_ + std::string(name) + ".weight", {out, in});
    if (bias) {
      add(prefix_ + std::string(name) + ".bias", {out});
    }
  }
  // The tensor that holds these rows, unless an earlier projection did.
  void rows(const ProjectionRows& rows, bool bias) {
    if (rows.first_row == 0) {
      add(rows.tensor, {rows.tensor_rows, config_.hidden_size});
      if (bias) {
        add(bias_name(rows), {rows.tensor_rows});
      }
    }
  }
  void append(std::vector<NamedShape> tensors) {
    std::move(tensors.begin(), tensors.end(), std::back_inserter(tensors_));
  }
  std::vector<NamedShape> take() { return std::move(tensors_); }

 private:
  void add(std::string name, std::vector<std::int64_t> shape) {
    tensors_.push_back({std::move(name), std::move(shape)});
  }
  const ModelConfig& config_;
  std::string prefix_;
  std::vector<NamedShape> tensors_;
};

void add_projections(const ModelConfig& config, int layer, LayerTensors& tensors) {
  tensors.rows(query_rows(config, layer), config.attention_bias);
  tensors.rows(key_rows(config, layer), config.attention_bias);
  tensors.rows(value_rows(config, layer), config.attention_bias);
}

void add_latent_projections(const ModelConfig& config, LayerTensors& tensors) {
  const MlaConfig& mla = *config.mla;
  if (mla.q_lora_rank > 0) {
    tensors.linear("self_attn.q_a_proj", mla.q_lora_rank, config.hidden_size,
                   config.attention_bias);
    tensors.norm("self_attn.q_a_layernorm", mla.q_lora_rank);
    tensors.linear("self_attn.q_b_proj", config.q_dim(), mla.q_lora_rank, false);
  } else {
    tensors.linear("self_attn.q_proj", config.q_dim(), config.hidden_size, false);
  }
  tensors.linear("self_attn.kv_a_proj_with_mqa", mla.cache_width(), config.hidden_size,
                 config.attention_bias);
  tensors.norm("self_attn.kv_a_layernorm", mla.kv_lora_rank);
  tensors.linear("self_attn.kv_b_proj", config.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim),
                 mla.kv_lora_rank, false);
}

void add_mlp(const ModelConfig& config, int layer, LayerTensors& tensors) {
  if (config.layer(layer).experts) {
    tensors.append(expert_tensors(config, layer));
    return;
  }
  if (config.arch->gated_mlp) {
    tensors.rows(gate_rows(config, layer), config.mlp_bias);
  }
  tensors.rows(up_rows(config, layer), config.mlp_bias);
  tensors.linear(module_names(*config.arch).down_proj, config.hidden_size, config.intermediate_size,
                 config.mlp_bias);
}

}  // namespace

std::string layer_prefix(const ModelConfig& config, int layer) {
  return config.tensor_prefix + "layers." + std::to_string(layer) + ".";
}

std::string embedding_name(const ModelConfig& config) {
  return config.tensor_prefix + "embed_tokens.weight";
}

// "language_model.model." beside "language_model.lm_head"; otherwise "lm_head".
std::string head_name(const ModelConfig& config) {
  const std::string_view parent = parent_of(config.tensor_prefix);
  return fmt::format("{}lm_head.weight", config.tensor_prefix.ends_with(".model.") ? parent : "");
}

std::string bias_name(const ProjectionRows& rows) {
  return fmt::format("{}bias", parent_of(rows.tensor));
}

ProjectionRows query_rows(const ModelConfig& config, int layer) {
  return attention_rows(config, layer, 0);
}
ProjectionRows key_rows(const ModelConfig& config, int layer) {
  return attention_rows(config, layer, 1);
}
ProjectionRows value_rows(const ModelConfig& config, int layer) {
  return attention_rows(config, layer, 2);
}
ProjectionRows gate_rows(const ModelConfig& config, int layer) {
  return mlp_rows(config, layer, 0);
}
ProjectionRows up_rows(const ModelConfig& config, int layer) { return mlp_rows(config, layer, 1); }

ModuleNames module_names(const ArchSpec& arch) {
  ModuleNames names;
  names.down_proj = arch.gated_mlp ? "mlp.down_proj" : "mlp.c_proj";
  switch (arch.norms) {
    case NormPlacement::kPre:
      names.input_norm = "input_layernorm";
      names.mlp_norm = "post_attention_layernorm";
      break;
    case NormPlacement::kSandwich:
      names.input_norm = "input_layernorm";
      names.attention_output_norm = "post_attention_layernorm";
      names.mlp_norm = "pre_feedforward_layernorm";
      names.mlp_output_norm = "post_feedforward_layernorm";
      break;
    case NormPlacement::kPost:
      names.attention_output_norm = "post_attention_layernorm";
      names.mlp_output_norm = "post_feedforward_layernorm";
      break;
  }
  return names;
}

std::vector<NamedShape> layer_tensors(const ModelConfig& config, int layer) {
  const ArchSpec& arch = *config.arch;
  const ModuleNames names = module_names(arch);
  const std::int64_t hidden_size = config.hidden_size;
  LayerTensors tensors(config, layer);
  tensors.norm(names.input_norm, hidden_size);
  if (config.mla) {
    add_latent_projections(config, tensors);
  } else {
    add_projections(config, layer, tensors);
  }
  tensors.linear("self_attn.o_proj", hidden_size, config.attended_dim(), config.output_bias);
  if (arch.qk_norm != QkNorm::kNone) {
    const bool per_head = arch.qk_norm == QkNorm::kPerHead;
    tensors.norm("self_attn.q_norm", per_head ? config.head_dim : config.q_dim());
    tensors.norm("self_attn.k_norm", per_head ? config.head_dim : config.kv_dim());
  }
  tensors.norm(names.attention_output_norm, hidden_size);
  tensors.norm(names.mlp_norm, hidden_size);
  add_mlp(config, layer, tensors);
  tensors.norm(names.mlp_output_norm, hidden_size);
  return tensors.take();
}

std::vector<NamedShape> model_tensors(const ModelConfig& config) {
  std::vector<NamedShape> tensors;
  tensors.push_back({embedding_name(config), {config.vocab_size, config.hidden_size}});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (NamedShape& tensor : layer_tensors(config, layer)) {
      tensors.push_back(std::move(tensor));
    }
  }
  tensors.push_back({config.tensor_prefix + "norm.weight", {config.hidden_size}});
  if (config.arch->norm == NormKind::kLayer) {
    tensors.push_back({config.tensor_prefix + "norm.bias", {config.hidden_size}});
  }
  if (!config.tied_embeddings) {
    tensors.push_back({head_name(config), {config.vocab_size, config.hidden_size}});
  }
  return tensors;
}

std::int64_t num_parameters(const std::vector<NamedShape>& tensors) {
  std::int64_t total = 0;
  for (const NamedShape& tensor : tensors) {
    std::int64_t count = 1;
    for (const std::int64_t size : tensor.shape) {
      count *= size;
    }
    total += count;
  }
  return total;
}

std::int64_t ModelConfig::num_parameters() const {
  return kvc::num_parameters(model_tensors(*this));
}

}  // namespace kvc

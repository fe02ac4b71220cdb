#include "model/weights.h"

#include <cstring>
#include <map>
#include <span>

#include "core/error.h"
#include "core/mapped_file.h"
#include "model/int8_linear.h"
#include "model/tensor_memory.h"

namespace kvc {
namespace {

Norm make_norm(const ModelConfig& config, at::Tensor weight, at::Tensor bias) {
  const NormKind kind = config.arch->norm;
  if (weight.defined() && (kind == NormKind::kRmsWide || kind == NormKind::kRmsPlusOne)) {
    weight = weight.to(at::kFloat) + (kind == NormKind::kRmsPlusOne ? 1 : 0);
  }
  return {std::move(weight), std::move(bias), config.norm_eps};
}

// Reads tensors of one layer by their short names.
class LayerReader {
 public:
  LayerReader(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
              at::ScalarType dtype, WeightType type)
      : checkpoint_(checkpoint),
        config_(config),
        prefix_(layer_prefix(config, layer)),
        dtype_(dtype),
        type_(type) {
    for (NamedShape& tensor : layer_tensors(config, layer)) {
      shapes_.emplace(std::move(tensor.name), std::move(tensor.shape));
    }
  }

  Linear linear(std::string_view name) const { return linear(name, type_); }
  Linear linear(std::string_view name, WeightType type) const {
    const std::string full = prefix_ + std::string(name);
    const auto found = shapes_.find(full + ".weight");
    Linear linear;
    if (found != shapes_.end()) {
      linear = load_weight(checkpoint_, found->first, found->second, dtype_, type);
    }
    linear.bias = tensor(full + ".bias");
    return linear;
  }
  // A projection's rows, and the same rows of its bias.
  Linear linear(const ProjectionRows& rows, bool with_weight = true) const {
    const at::Tensor bias = tensor(bias_name(rows));
    Linear linear;
    if (with_weight) {
      linear = load_weight_rows(checkpoint_, rows, config_.hidden_size, dtype_, type_);
    }
    linear.bias = bias.defined() ? bias.narrow(0, rows.first_row, rows.num_rows) : bias;
    return linear;
  }
  Norm norm(std::string_view name) const {
    const std::string full = prefix_ + std::string(name);
    return make_norm(config_, tensor(full + ".weight"), tensor(full + ".bias"));
  }

 private:
  // Undefined when the architecture has no such tensor.
  at::Tensor tensor(const std::string& name) const {
    const auto found = shapes_.find(name);
    return found == shapes_.end() ? at::Tensor()
                                  : load_tensor(checkpoint_, found->first, found->second, dtype_);
  }
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  std::string prefix_;
  at::ScalarType dtype_;
  WeightType type_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

at::Tensor scaled_embeddings(const ModelConfig& config, const at::Tensor& rows) {
  double scale = config.embedding_scale;
  if (config.arch->scale_embeddings) {
    scale = at::scalar_tensor(scale, rows.scalar_type()).item<double>();
  }
  return scale == 1 ? rows : rows * scale;
}

at::Tensor stack_rows(const std::vector<at::Tensor>& parts) {
  std::vector<std::int64_t> sizes = parts.front().sizes().vec();
  sizes.front() = 0;
  for (const at::Tensor& part : parts) {
    sizes.front() += part.size(0);
  }
  at::Tensor stacked = empty_weight(sizes, parts.front().scalar_type());
  return at::cat_out(stacked, parts);
}

// Stacks the rows of `parts` and makes each of them a view of its block. Undefined where no part has any.
at::Tensor fuse(std::initializer_list<Linear*> parts, at::Tensor Linear::*member) {
  std::vector<at::Tensor> tensors;
  for (Linear* part : parts) {
    if ((part->*member).defined()) {
      tensors.push_back(part->*member);
    }
  }
  if (tensors.empty()) {
    return {};
  }
  at::Tensor fused = stack_rows(tensors);
  std::int64_t row = 0;
  for (Linear* part : parts) {
    const std::int64_t rows = (part->*member).size(0);
    part->*member = fused.narrow(0, row, rows);
    row += rows;
  }
  return fused;
}

Linear fuse(std::initializer_list<Linear*> parts) {
  return {fuse(parts, &Linear::weight), fuse(parts, &Linear::bias), fuse(parts, &Linear::scales)};
}

MlaWeights load_mla(const LayerReader& reader, const MlaConfig& config) {
  constexpr double kLatentNormEps = 1e-6;  // whatever the config's rms_norm_eps is
  const auto norm = [&](const char* name) {
    Norm loaded = reader.norm(name);
    loaded.eps = kLatentNormEps;
    return loaded;
  };
  MlaWeights weights;
  if (config.q_lora_rank > 0) {
    weights.q_a_proj = reader.linear("self_attn.q_a_proj");
    weights.q_a_norm = norm("self_attn.q_a_layernorm");
    weights.q_proj = reader.linear("self_attn.q_b_proj");
  } else {
    weights.q_proj = reader.linear("self_attn.q_proj");
  }
  weights.kv_a_proj = reader.linear("self_attn.kv_a_proj_with_mqa");
  weights.kv_a_norm = norm("self_attn.kv_a_layernorm");
  // Attention on latents multiplies with parts of it.
  weights.kv_b_proj = reader.linear("self_attn.kv_b_proj", WeightType::kFloat);
  return weights;
}

void load_mlp(const LayerReader& reader, const ModelConfig& config, int layer,
              LayerWeights& weights) {
  if (config.arch->gated_mlp) {
    weights.gate_proj = reader.linear(gate_rows(config, layer));
  }
  weights.up_proj = reader.linear(up_rows(config, layer));
  weights.down_proj = reader.linear(module_names(*config.arch).down_proj);
}

}  // namespace

at::Tensor embed(const ModelConfig& config, const at::Tensor& embed_tokens, const at::Tensor& ids) {
  return scaled_embeddings(config, at::embedding(embed_tokens, ids));
}

at::Tensor embed(const ModelConfig& config, const ModelWeights& weights, const at::Tensor& ids,
                 at::ScalarType dtype) {
  return weights.embed_tokens.defined()
             ? embed(config, weights.embed_tokens, ids)
             : scaled_embeddings(config,
                                 int8_rows(weights.lm_head, ids, config.hidden_size, dtype));
}

at::Tensor load_embeddings(const Checkpoint& checkpoint, const ModelConfig& config,
                           const at::Tensor& ids, at::ScalarType dtype) {
  const std::string name = embedding_name(config);
  const TensorInfo& info = checkpoint.info(name, {config.vocab_size, config.hidden_size});
  at::Tensor rows = at::empty({ids.size(0), config.hidden_size},
                              at::TensorOptions(scalar_type(info.dtype, name)));
  const std::span<const std::byte> table = checkpoint.bytes(name);
  const std::size_t row_bytes = rows.element_size() * static_cast<std::size_t>(config.hidden_size);
  const at::Tensor contiguous_ids = ids.contiguous();
  auto* row = static_cast<std::byte*>(rows.data_ptr());
  for (const std::int64_t id :
       std::span(contiguous_ids.const_data_ptr<std::int64_t>(), contiguous_ids.numel())) {
    KVC_CHECK(id >= 0 && id < config.vocab_size, "token id {} is outside the vocabulary of {}", id,
              config.vocab_size);
    std::memcpy(row, table.data() + static_cast<std::size_t>(id) * row_bytes, row_bytes);
    row += row_bytes;
  }
  release_pages(table);
  return scaled_embeddings(config, rows.to(dtype));
}

LayerWeights load_layer(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
                        at::ScalarType dtype, bool with_kv_weights, WeightType type) {
  const LayerReader reader(checkpoint, config, layer, dtype, type);
  const ModuleNames names = module_names(*config.arch);
  LayerWeights weights;
  weights.input_norm = reader.norm(names.input_norm);
  if (config.mla) {
    weights.mla = load_mla(reader, *config.mla);
  } else {
    weights.q_proj = reader.linear(query_rows(config, layer));
    weights.k_proj = reader.linear(key_rows(config, layer), with_kv_weights);
    weights.v_proj = reader.linear(value_rows(config, layer), with_kv_weights);
  }
  weights.o_proj = reader.linear("self_attn.o_proj");
  weights.q_norm = reader.norm("self_attn.q_norm");
  weights.k_norm = reader.norm("self_attn.k_norm");
  weights.attention_output_norm = reader.norm(names.attention_output_norm);
  weights.mlp_norm = reader.norm(names.mlp_norm);
  if (config.layer(layer).experts) {
    weights.experts = load_experts(checkpoint, config, layer, dtype, type);
  } else {
    load_mlp(reader, config, layer, weights);
  }
  weights.mlp_output_norm = reader.norm(names.mlp_output_norm);
  return weights;
}

void fuse_projections(LayerWeights& weights) {
  if (weights.k_proj.weight.defined()) {
    weights.qkv_proj = fuse({&weights.q_proj, &weights.k_proj, &weights.v_proj});
  }
  if (weights.gate_proj.weight.defined()) {
    weights.gate_up_proj = fuse({&weights.gate_proj, &weights.up_proj});
  }
}

ModelWeights load_model_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                                at::ScalarType dtype, WeightType type) {
  const std::vector<std::int64_t> shape = {config.vocab_size, config.hidden_size};
  const auto norm_part = [&](const char* part) {
    return load_tensor(checkpoint, config.tensor_prefix + "norm." + part, {config.hidden_size},
                       dtype);
  };
  const bool tied = config.tied_embeddings;
  const std::string head = tied ? embedding_name(config) : head_name(config);
  ModelWeights weights;
  weights.lm_head = load_weight(checkpoint, head, shape, dtype, type);
  if (!tied) {
    weights.embed_tokens = load_tensor(checkpoint, embedding_name(config), shape, dtype);
  } else if (type == WeightType::kFloat) {
    weights.embed_tokens = weights.lm_head.weight;
  }
  weights.norm =
      make_norm(config, norm_part("weight"),
                config.arch->norm == NormKind::kLayer ? norm_part("bias") : at::Tensor());
  return weights;
}

at::ScalarType storage_dtype(const Checkpoint& checkpoint, const ModelConfig& config) {
  const std::string name = embedding_name(config);
  return scalar_type(checkpoint.info(name).dtype, name);
}

}  // namespace kvc

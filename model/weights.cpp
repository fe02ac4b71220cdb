#include "model/weights.h"

#include <cstring>
#include <map>
#include <span>

#include "core/error.h"
#include "core/mapped_file.h"
#include "model/float_linear.h"

namespace kvc {
namespace {

at::Tensor empty(const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  return at::empty(shape, at::TensorOptions(dtype));
}

// Reads tensors of one layer by their short names.
class LayerReader {
 public:
  LayerReader(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
              at::ScalarType dtype)
      : checkpoint_(checkpoint), prefix_(layer_prefix(layer)), dtype_(dtype) {
    for (NamedShape& tensor : layer_tensors(config, layer)) {
      shapes_.emplace(std::move(tensor.name), std::move(tensor.shape));
    }
  }

  // Undefined when the architecture has no such tensor.
  at::Tensor tensor(const std::string& name) const {
    const auto found = shapes_.find(prefix_ + name);
    return found == shapes_.end() ? at::Tensor()
                                  : load_tensor(checkpoint_, found->first, found->second, dtype_);
  }
  Linear linear(const std::string& name, bool with_weight = true) const {
    return {with_weight ? tensor(name + ".weight") : at::Tensor(), tensor(name + ".bias")};
  }

 private:
  const Checkpoint& checkpoint_;
  std::string prefix_;
  at::ScalarType dtype_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

// Stacks the rows of `parts` and makes each of them a view of its block.
Linear fuse(std::initializer_list<Linear*> parts) {
  std::vector<at::Tensor> weights, biases;
  for (const Linear* part : parts) {
    weights.push_back(part->weight);
    if (part->bias.defined()) {
      biases.push_back(part->bias);
    }
  }
  Linear fused{at::cat(weights), biases.empty() ? at::Tensor() : at::cat(biases)};
  std::int64_t row = 0;
  for (Linear* part : parts) {
    const std::int64_t rows = part->weight.size(0);
    part->weight = fused.weight.narrow(0, row, rows);
    part->bias = fused.bias.defined() ? fused.bias.narrow(0, row, rows) : at::Tensor();
    row += rows;
  }
  return fused;
}

}  // namespace

at::ScalarType scalar_type(Dtype dtype, const std::string& tensor) {
  switch (dtype) {
    case Dtype::kF64:
      return at::kDouble;
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kBF16:
      return at::kBFloat16;
    case Dtype::kF16:
      return at::kHalf;
    default:
      fail("{}: stored as {}; weights must be F64, F32, BF16 or F16", tensor, dtype_name(dtype));
  }
}

Dtype dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return Dtype::kF64;
    case at::kFloat:
      return Dtype::kF32;
    case at::kBFloat16:
      return Dtype::kBF16;
    case at::kHalf:
      return Dtype::kF16;
    case at::kLong:
      return Dtype::kI64;
    case at::kInt:
      return Dtype::kI32;
    default:
      fail("tensors of type {} cannot be stored", c10::toString(type));
  }
}

at::ScalarType parse_scalar_type(const std::string& name) {
  for (const auto& [known, type] :
       {std::pair("float32", at::kFloat), std::pair("bfloat16", at::kBFloat16),
        std::pair("float16", at::kHalf)}) {
    if (name == known) {
      return type;
    }
  }
  fail_usage("dtype \"{}\" is not supported; supported: float32, bfloat16, float16", name);
}

at::Tensor load_tensor(const Checkpoint& checkpoint, const std::string& name,
                       const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  const at::ScalarType stored = scalar_type(checkpoint.info(name, shape).dtype, name);
  const std::span<const std::byte> bytes = checkpoint.bytes(name);
  at::Tensor tensor = empty(shape, stored);
  KVC_CHECK(tensor.nbytes() == bytes.size(), "{}: {} bytes; expected {}", name, bytes.size(),
            tensor.nbytes());
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  release_pages(bytes);
  return tensor.to(dtype);
}

at::Tensor load_embeddings(const Checkpoint& checkpoint, const ModelConfig& config,
                           const at::Tensor& ids, at::ScalarType dtype) {
  const std::string name = "model.embed_tokens.weight";
  const TensorInfo& info = checkpoint.info(name, {config.vocab_size, config.hidden_size});
  at::Tensor rows = empty({ids.size(0), config.hidden_size}, scalar_type(info.dtype, name));
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
  return rows.to(dtype);
}

at::Tensor Linear::operator()(const at::Tensor& x) const { return float_linear(x, weight, bias); }

LayerWeights load_layer(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
                        at::ScalarType dtype, bool with_kv_weights) {
  const LayerReader reader(checkpoint, config, layer, dtype);
  LayerWeights weights;
  weights.input_layernorm = reader.tensor("input_layernorm.weight");
  weights.q_proj = reader.linear("self_attn.q_proj");
  weights.k_proj = reader.linear("self_attn.k_proj", with_kv_weights);
  weights.v_proj = reader.linear("self_attn.v_proj", with_kv_weights);
  weights.o_proj = reader.linear("self_attn.o_proj");
  weights.q_norm = reader.tensor("self_attn.q_norm.weight");
  weights.k_norm = reader.tensor("self_attn.k_norm.weight");
  weights.post_attention_layernorm = reader.tensor("post_attention_layernorm.weight");
  weights.gate_proj = reader.linear("mlp.gate_proj");
  weights.up_proj = reader.linear("mlp.up_proj");
  weights.down_proj = reader.linear("mlp.down_proj");
  return weights;
}

void fuse_projections(LayerWeights& weights) {
  if (weights.k_proj.weight.defined()) {
    weights.qkv_proj = fuse({&weights.q_proj, &weights.k_proj, &weights.v_proj});
  }
  weights.gate_up_proj = fuse({&weights.gate_proj, &weights.up_proj});
}

ModelWeights load_model_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                                at::ScalarType dtype) {
  const std::vector<std::int64_t> shape = {config.vocab_size, config.hidden_size};
  ModelWeights weights;
  weights.embed_tokens = load_tensor(checkpoint, "model.embed_tokens.weight", shape, dtype);
  weights.norm = load_tensor(checkpoint, "model.norm.weight", {config.hidden_size}, dtype);
  weights.lm_head = config.tied_embeddings
                        ? weights.embed_tokens
                        : load_tensor(checkpoint, "lm_head.weight", shape, dtype);
  return weights;
}

at::ScalarType storage_dtype(const Checkpoint& checkpoint) {
  const std::string name = "model.embed_tokens.weight";
  return scalar_type(checkpoint.info(name).dtype, name);
}

}  // namespace kvc

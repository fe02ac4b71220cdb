#include "model/expert_tensors.h"

#include <fmt/format.h>

#include "model/tensor_names.h"
#include "model/weights.h"

namespace kvc {
namespace {

struct Names {
  std::string router, experts, gate, up, down, shared, shared_gate;

  std::string of_expert(std::int64_t expert, const std::string& projection) const {
    return fmt::format("{}{}.{}.weight", experts, expert, projection);
  }
  std::string stacked_gate_up() const { return experts + "gate_up_proj"; }
  std::string stacked_down() const { return experts + "down_proj"; }
};

Names names_of(const ModelConfig& config, int layer) {
  const std::string prefix = layer_prefix(config, layer);
  const bool mixtral = config.moe->style == ExpertStyle::kMixtral && !config.moe->stacked;
  const std::string block = prefix + (mixtral ? "block_sparse_moe." : "mlp.");
  Names names;
  names.router = block + "gate.weight";
  names.experts = block + "experts.";
  names.gate = mixtral ? "w1" : "gate_proj";
  names.up = mixtral ? "w3" : "up_proj";
  names.down = mixtral ? "w2" : "down_proj";
  names.shared = prefix + (config.moe->shared_gate ? "mlp.shared_expert." : "mlp.shared_experts.");
  names.shared_gate = prefix + "mlp.shared_expert_gate.weight";
  return names;
}

// Tensors that are read, each under its name with its shape.
class Reader {
 public:
  Reader(const Checkpoint& checkpoint, at::ScalarType dtype)
      : checkpoint_(checkpoint), dtype_(dtype) {}

  at::Tensor load(const std::string& name, const std::vector<std::int64_t>& shape) const {
    return load_tensor(checkpoint_, name, shape, dtype_);
  }
  Linear linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias) const {
    return {load(name + ".weight", {out, in}), bias ? load(name + ".bias", {out}) : at::Tensor()};
  }

 private:
  const Checkpoint& checkpoint_;
  at::ScalarType dtype_;
};

// One expert's matrices at a time into the layer's.
void stack_experts(const Reader& reader, const Names& names, const ModelConfig& config,
                   at::ScalarType dtype, MoeWeights& weights) {
  const MoeConfig& moe = *config.moe;
  const std::int64_t hidden_size = config.hidden_size, size = moe.expert_size;
  const at::TensorOptions options(dtype);
  weights.gate_up = at::empty({moe.num_experts, 2 * size, hidden_size}, options);
  weights.down = at::empty({moe.num_experts, hidden_size, size}, options);
  for (std::int64_t expert = 0; expert < moe.num_experts; ++expert) {
    const auto load = [&](const std::string& projection, std::int64_t out, std::int64_t in) {
      return reader.load(names.of_expert(expert, projection), {out, in});
    };
    weights.gate_up[expert].narrow(0, 0, size).copy_(load(names.gate, size, hidden_size));
    weights.gate_up[expert].narrow(0, size, size).copy_(load(names.up, size, hidden_size));
    weights.down[expert].copy_(load(names.down, hidden_size, size));
  }
}

Linear stack(const Linear& first, const Linear& second) {
  return {at::cat({first.weight, second.weight}),
          first.bias.defined() ? at::cat({first.bias, second.bias}) : at::Tensor()};
}

void load_shared(const Reader& reader, const Names& names, const ModelConfig& config,
                 MoeWeights& weights) {
  const std::int64_t hidden_size = config.hidden_size, size = config.moe->shared_size;
  const auto linear = [&](const char* name, std::int64_t out, std::int64_t in) {
    return reader.linear(names.shared + name, out, in, config.mlp_bias);
  };
  weights.shared_gate_up =
      stack(linear("gate_proj", size, hidden_size), linear("up_proj", size, hidden_size));
  weights.shared_down = linear("down_proj", hidden_size, size);
  if (config.moe->shared_gate) {
    weights.shared_gate = reader.load(names.shared_gate, {1, hidden_size});
  }
}

int first_expert_layer(const ModelConfig& config) {
  int layer = 0;
  while (!config.layer(layer).experts) {
    ++layer;
  }
  return layer;
}

}  // namespace

std::vector<NamedShape> expert_tensors(const ModelConfig& config, int layer) {
  const MoeConfig& moe = *config.moe;
  const Names names = names_of(config, layer);
  const std::int64_t hidden_size = config.hidden_size, size = moe.expert_size;
  std::vector<NamedShape> tensors = {{names.router, {moe.num_experts, hidden_size}}};
  if (moe.stacked) {
    tensors.push_back({names.stacked_gate_up(), {moe.num_experts, 2 * size, hidden_size}});
    tensors.push_back({names.stacked_down(), {moe.num_experts, hidden_size, size}});
  }
  for (std::int64_t expert = 0; !moe.stacked && expert < moe.num_experts; ++expert) {
    tensors.push_back({names.of_expert(expert, names.gate), {size, hidden_size}});
    tensors.push_back({names.of_expert(expert, names.up), {size, hidden_size}});
    tensors.push_back({names.of_expert(expert, names.down), {hidden_size, size}});
  }
  const auto shared = [&](const char* name, std::int64_t out, std::int64_t in) {
    tensors.push_back({names.shared + name + ".weight", {out, in}});
    if (config.mlp_bias) {
      tensors.push_back({names.shared + name + ".bias", {out}});
    }
  };
  if (moe.shared_size > 0) {
    shared("gate_proj", moe.shared_size, hidden_size);
    shared("up_proj", moe.shared_size, hidden_size);
    shared("down_proj", hidden_size, moe.shared_size);
  }
  if (moe.shared_gate) {
    tensors.push_back({names.shared_gate, {1, hidden_size}});
  }
  return tensors;
}

bool stores_stacked_experts(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (!config.moe) {
    return false;
  }
  ModelConfig stacked = config;
  stacked.moe->stacked = true;
  return checkpoint.contains(names_of(stacked, first_expert_layer(config)).stacked_gate_up());
}

MoeWeights load_experts(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
                        at::ScalarType dtype) {
  const MoeConfig& moe = *config.moe;
  const Names names = names_of(config, layer);
  const Reader reader(checkpoint, dtype);
  MoeWeights weights;
  weights.router = reader.load(names.router, {moe.num_experts, config.hidden_size});
  if (moe.stacked) {
    const std::int64_t hidden_size = config.hidden_size, size = moe.expert_size;
    weights.gate_up =
        reader.load(names.stacked_gate_up(), {moe.num_experts, 2 * size, hidden_size});
    weights.down = reader.load(names.stacked_down(), {moe.num_experts, hidden_size, size});
  } else {
    stack_experts(reader, names, config, dtype, weights);
  }
  if (moe.shared_size > 0) {
    load_shared(reader, names, config, weights);
  }
  return weights;
}

}  // namespace kvc

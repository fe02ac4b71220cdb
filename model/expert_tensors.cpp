#include "model/weights.h"

#include <fmt/format.h>

#include "model/int8_linear.h"
#include "model/tensor_memory.h"
#include "model/tensor_names.h"

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
  Reader(const Checkpoint& checkpoint, at::ScalarType dtype, WeightType type)
      : checkpoint_(checkpoint), dtype_(dtype), type_(type) {}

  at::Tensor load(const std::string& name, const std::vector<std::int64_t>& shape) const {
    return load_tensor(checkpoint_, name, shape, dtype_);
  }
  Linear linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias) const {
    Linear linear = weight(name + ".weight", {out, in});
    linear.bias = bias ? load(name + ".bias", {out}) : at::Tensor();
    return linear;
  }
  Linear weight(const std::string& name, const std::vector<std::int64_t>& shape) const {
    return load_weight(checkpoint_, name, shape, dtype_, type_);
  }
  // Without values.
  Linear empty(const std::vector<std::int64_t>& shape) const {
    return type_ == WeightType::kInt8 ? empty_int8(shape) : Linear{empty_weight(shape, dtype_), {}};
  }

 private:
  const Checkpoint& checkpoint_;
  at::ScalarType dtype_;
  WeightType type_;
};

// Copies a weight into the rows of another from `first_row` on.
void copy_rows(const Linear& from, std::int64_t first_row, const Linear& to) {
  to.weight.narrow(0, first_row, from.weight.size(0)).copy_(from.weight);
  if (to.scales.defined()) {
    to.scales.narrow(0, first_row, from.scales.size(0)).copy_(from.scales);
  }
}

// One expert's matrices at a time into the layer's.
void stack_experts(const Reader& reader, const Names& names, const ModelConfig& config,
                   MoeWeights& weights) {
  const MoeConfig& moe = *config.moe;
  const std::int64_t hidden_size = config.hidden_size, size = moe.expert_size;
  weights.gate_up = reader.empty({moe.num_experts, 2 * size, hidden_size});
  weights.down = reader.empty({moe.num_experts, hidden_size, size});
  for (std::int64_t expert = 0; expert < moe.num_experts; ++expert) {
    const auto weight = [&](const std::string& projection, std::int64_t out, std::int64_t in) {
      return reader.weight(names.of_expert(expert, projection), {out, in});
    };
    const Linear gate_up = weights.gate_up.stacked(expert);
    copy_rows(weight(names.gate, size, hidden_size), 0, gate_up);
    copy_rows(weight(names.up, size, hidden_size), size, gate_up);
    copy_rows(weight(names.down, hidden_size, size), 0, weights.down.stacked(expert));
  }
}

Linear stack(const Linear& first, const Linear& second) {
  const auto stacked = [&](at::Tensor Linear::*member) {
    return (first.*member).defined() ? at::cat({first.*member, second.*member}) : at::Tensor();
  };
  return {stacked(&Linear::weight), stacked(&Linear::bias), stacked(&Linear::scales)};
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
                        at::ScalarType dtype, WeightType type) {
  const MoeConfig& moe = *config.moe;
  const Names names = names_of(config, layer);
  const Reader reader(checkpoint, dtype, type);
  MoeWeights weights;
  weights.router = reader.load(names.router, {moe.num_experts, config.hidden_size});
  if (moe.stacked) {
    const std::int64_t hidden_size = config.hidden_size, size = moe.expert_size;
    weights.gate_up =
        reader.weight(names.stacked_gate_up(), {moe.num_experts, 2 * size, hidden_size});
    weights.down = reader.weight(names.stacked_down(), {moe.num_experts, hidden_size, size});
  } else {
    stack_experts(reader, names, config, weights);
  }
  if (moe.shared_size > 0) {
    load_shared(reader, names, config, weights);
  }
  return weights;
}

}  // namespace kvc
